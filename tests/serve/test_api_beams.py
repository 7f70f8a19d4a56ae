"""Beam search and n-gram bans over HTTP: what is taken, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    TEXT: {"prompt": "Hi", "max_tokens": 4},
}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"stream": True}, "stream", "leave stream out"),
        ({"best_of": 1, "n": 2}, "best_of", "best_of is 1"),
        ({"best_of": 129}, "best_of", "at most 128"),
        ({"repetition_penalty": 1.2}, None, "Penalties do not go with beam search"),
        ({"presence_penalty": 1}, None, "Penalties do not go with beam search"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "does not go with beam search"),
        ({"bad_words": ["x"]}, "bad_words", "does not go with beam search"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size", "does not go with beam search"),
        ({"guided_regex": "a+"}, "guided_regex", "does not go with beam search"),
        ({"length_penalty": 101}, "length_penalty", "between -100 and 100"),
    ],
)
def test_what_does_not_go_with_beams_is_400(
    served: Served, path: str, fields: dict[str, Any], param: str | None, words: str
) -> None:
    reply = served.post(path, BASES[path] | {"use_beam_search": True} | fields)
    assert reply.status == 400
    assert words in reply.json["error"]["message"]
    assert reply.json["error"]["param"] == param


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
    ],
)
def test_fields_of_beams_need_beams(
    served: Served, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = served.post(path, BASES[path] | fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


def test_a_chat_has_no_best_of_without_beams_and_a_scored_prompt_no_beams(served: Served) -> None:
    reply = served.post(CHAT, BASES[CHAT] | {"best_of": 2})
    assert (reply.status, reply.json["error"]["param"]) == (400, "best_of")
    fields = {"use_beam_search": True, "echo": True, "logprobs": 1}
    reply = served.post(TEXT, BASES[TEXT] | fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, "logprobs")


def test_a_logits_processor_does_not_come_over_http(served: Served) -> None:
    reply = served.post(TEXT, BASES[TEXT] | {"logits_processor": "gASVAA=="})
    assert reply.status == 200
    assert "logits_processor" in reply.headers["x-enginewright-warning"]
    assert served.client.submitted[-1].logits_processor is None


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_neutral_values_are_taken_and_the_size_reaches_the_executor(
    served: Served, path: str
) -> None:
    neutral = {"length_penalty": 1.0, "early_stopping": False, "use_beam_search": False}
    fields = neutral | {"no_repeat_ngram_size": 3}
    assert served.post(path, BASES[path] | fields).status == 200
    assert served.client.submitted[-1].no_repeat_ngram_size == 3
