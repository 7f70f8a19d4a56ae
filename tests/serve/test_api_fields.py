"""Fields beyond OpenAI's first ones: what each does, and how the request is named and ended."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from .conftest import ANSWER, Reply, Served, wait_until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            "json_schema",
            SCHEMA,
        ),
        ({"response_format": {"type": "json", "schema": SCHEMA}}, "json_schema", SCHEMA),
        ({"response_format": {"type": "regex", "regex": "a+"}}, "regex", "a+"),
        ({"response_format": {"type": "ebnf", "ebnf": 'root ::= "a"'}}, "grammar", 'root ::= "a"'),
        (
            {"response_format": {"type": "grammar", "grammar": 'start: "a"'}},
            "grammar",
            'start: "a"',
        ),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"guided_regex": "[ab]"}, "regex", "[ab]"),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"guided_choice": ["a", "b"]}, "choice", ["a", "b"]),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", ["a"]),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"guided_decoding": {"regex": "[ab]"}}, "regex", "[ab]"),
        ({"guided_decoding": {"json": SCHEMA}}, "json_schema", SCHEMA),
    ],
)
def test_every_form_of_constraint(
    served: Served, fields: dict[str, Any], kind: str, value: Any
) -> None:
    for path, base in ((CHAT, MESSAGES), (TEXT, {"prompt": "Hi"})):
        assert served.post(path, base | fields).status == 200
        guided = served.client.submitted[-1].guided
        assert guided.kind == kind
        found = guided.value if isinstance(value, str) else json.loads(guided.value)
        assert found == value


def test_two_constraints_are_refused(served: Served) -> None:
    fields = {"guided_regex": "a", "response_format": {"type": "json_object"}}
    reply = served.post(CHAT, MESSAGES | fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, "guided_regex")


def test_scheduling_fields_reach_the_executor(served: Served) -> None:
    fields = {"priority": -3, "timeout": 60, "queue_timeout": 5.5, "cache_salt": "tenant"}
    served.post(CHAT, MESSAGES | fields)
    [params] = served.client.submitted
    assert (params.priority, params.deadline) == (-3, 60.0)
    assert (params.queue_timeout, params.cache_salt) == (5.5, "tenant")
    served.post(CHAT, MESSAGES | {"deadline_ms": 1500})
    assert served.client.submitted[-1].deadline == 1.5
    reply = served.post(CHAT, MESSAGES | {"deadline_ms": 1500, "timeout": 2})
    assert (reply.status, reply.json["error"]["param"]) == (400, "deadline_ms")


def test_bad_words_become_tokens(served: Served) -> None:
    served.post(CHAT, MESSAGES | {"bad_words": ["hello"]})
    [params] = served.client.submitted
    encode = served.tokenizer.encode
    assert params.bad_words == (tuple(encode("hello")), tuple(encode(" hello")))


def test_token_ids(served: Served) -> None:
    ids = served.tokenizer.encode(ANSWER)
    body = MESSAGES | {"return_token_ids": True}
    whole = served.post(CHAT, body).json
    assert whole["choices"][0]["token_ids"][:-1] == ids
    events = served.post(CHAT, body | {"stream": True}).events
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    streamed = [i for event in events for i in event["choices"][0].get("token_ids", ())]
    assert streamed == whole["choices"][0]["token_ids"]
    body = {"prompt": "Hi", "return_token_ids": True, "max_tokens": 64, "n": 2}
    for choice in served.post(TEXT, body).json["choices"]:
        assert choice["token_ids"][:-1] == ids
        assert choice["prompt_token_ids"] == served.tokenizer.encode("Hi")
    events = served.post(TEXT, body | {"stream": True}).events
    mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == 1]
    assert [i for choice in mine for i in choice.get("token_ids", ())][:-1] == ids
    assert mine[0]["prompt_token_ids"] == served.tokenizer.encode("Hi")


def test_usage_in_every_event(served: Served) -> None:
    body = MESSAGES | {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    events = served.post(CHAT, body).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == len(served.tokenizer.encode(ANSWER)) + 1


def test_log_probabilities_of_the_prompt(served: Served) -> None:
    body = {"prompt": ["Hello there", [5, 6]], "prompt_logprobs": 2, "max_tokens": 3}
    reply = served.post(TEXT, body).json
    ids = served.tokenizer.encode("Hello there")
    first, second = (choice["prompt_logprobs"] for choice in reply["choices"])
    assert [choice["logprobs"] for choice in reply["choices"]] == [None, None]
    assert (len(first), len(second)) == (len(ids), 2)
    assert (first[0], second[0]) == (None, None)
    text = served.tokenizer.decode([6])
    assert second[1]["6"] == {"logprob": -0.5, "rank": 1, "decoded_token": text}
    assert second[1].keys() == {"6", "7"}
    reply = served.post(CHAT, MESSAGES | {"prompt_logprobs": 0, "return_token_ids": True}).json
    assert len(reply["prompt_logprobs"]) == len(reply["prompt_token_ids"])
    assert all(len(table) == 1 for table in reply["prompt_logprobs"][1:])
    echo = {"prompt": "Hi", "echo": True, "logprobs": 1}
    for path, wrong in (
        (TEXT, {"prompt": "Hi", "stream": True}),
        (CHAT, MESSAGES | {"stream": True}),
        (TEXT, echo),
        (TEXT, {"prompt": "Hi", "prompt_logprobs": 99}),
    ):
        refused = served.post(path, {"prompt_logprobs": 1} | wrong)
        assert (refused.status, refused.json["error"]["param"]) == (400, "prompt_logprobs")


def test_prompts_are_cut_at_their_beginning(served: Served) -> None:
    fields = {"truncate_prompt_tokens": 2, "return_token_ids": True}
    [choice] = served.post(TEXT, {"prompt": [5, 6, 7], "echo": True, **fields}).json["choices"]
    assert choice["prompt_token_ids"] == [6, 7]
    assert choice["text"].startswith(served.tokenizer.decode([6, 7]))
    assert len(served.post(CHAT, MESSAGES | fields).json["prompt_token_ids"]) == 2
    refused = served.post(TEXT, {"prompt": "Hi", "truncate_prompt_tokens": 0})
    assert (refused.status, refused.json["error"]["param"]) == (400, "truncate_prompt_tokens")


def test_what_would_change_the_answer_is_not_ignored(served: Served) -> None:
    refused = served.post(CHAT, MESSAGES | {"chat_template": "{{ messages }}"})
    assert (refused.status, refused.json["error"]["param"]) == (400, "chat_template")
    served.post(TEXT, {"prompt": "Hi", "no_repeat_ngram_size": 3})
    assert served.client.submitted[-1].no_repeat_ngram_size == 3


def test_echo(served: Served) -> None:
    body = {"prompt": ["Hello ", [5, 6]], "echo": True, "max_tokens": 64}
    texts = [choice["text"] for choice in served.post(TEXT, body).json["choices"]]
    assert texts == ["Hello " + ANSWER, served.tokenizer.decode([5, 6]) + ANSWER]
    events = served.post(TEXT, body | {"prompt": "Hello ", "stream": True}).events
    assert "".join(event["choices"][0]["text"] for event in events) == "Hello " + ANSWER
    reply = served.post(TEXT, {"prompt": "Hello ", "echo": True, "max_tokens": 0}).json
    assert reply["choices"][0]["text"] == "Hello "
    assert reply["usage"]["completion_tokens"] == 0


def test_echo_with_logprobs_scores_the_prompt(served: Served) -> None:
    ids = served.tokenizer.encode("Hello there")
    body = {"prompt": "Hello there", "echo": True, "logprobs": 1, "max_tokens": 0}
    reply = served.post(TEXT, body).json
    [choice] = reply["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello there", "length")
    assert reply["usage"]["completion_tokens"] == 0
    scores = choice["logprobs"]
    assert "".join(scores["tokens"]) == "Hello there"
    assert scores["token_logprobs"] == [None] + [-0.5] * (len(ids) - 1)
    assert scores["top_logprobs"][0] is None
    assert scores["text_offset"][:2] == [0, len(scores["tokens"][0])]
    body["max_tokens"] = 4
    whole = served.post(TEXT, body).json["choices"][0]["logprobs"]
    assert len(whole["tokens"]) == len(ids) + 4
    events = served.post(TEXT, body | {"stream": True}).events
    parts = [event["choices"][0]["logprobs"] for event in events]
    for key in whole:
        assert [item for part in parts if part for item in part[key]] == whole[key]


def test_best_of_shows_the_likeliest(served: Served) -> None:
    body = {"prompt": "Hi", "n": 2, "best_of": 5, "max_tokens": 3}
    reply = served.post(TEXT, body).json
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert len(served.client.submitted) == 5
    assert reply["usage"]["completion_tokens"] == 15
    assert reply["choices"][0]["logprobs"] is None
    for bad in ({"best_of": 1}, {"stream": True}):
        reply = served.post(TEXT, body | bad)
        assert (reply.status, reply.json["error"]["param"]) == (400, "best_of")


def test_the_last_message_may_be_continued(served: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    body = {"messages": messages, "continue_final_message": True}
    tokens = served.post("/tokenize", body).json["tokens"]
    assert served.tokenizer.decode(tokens, False).endswith("Well,")
    assert served.post(CHAT, body).status == 200
    reply = served.post(CHAT, {"messages": messages[:1], "continue_final_message": True})
    assert (reply.status, reply.json["error"]["param"]) == (400, "messages")


def test_unknown_fields_are_remarked_on_or_refused(served: Served) -> None:
    body = MESSAGES | {"temprature": 1, "user": "me", "metadata": {"a": "b"}}
    reply = served.post(CHAT, body)
    assert reply.status == 200
    assert reply.headers["x-enginewright-warning"] == "ignored unknown fields: temprature"
    assert "x-enginewright-warning" not in served.post(CHAT, MESSAGES).headers
    served.service.strict = True
    reply = served.post(CHAT, body)
    assert (reply.status, reply.json["error"]["param"]) == (400, "temprature")
    assert served.post(CHAT, MESSAGES | {"stream": True}).status == 200


def test_request_ids(served: Served) -> None:
    reply = served.post(CHAT, MESSAGES | {"request_id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"
    assert reply.json["id"] == "chatcmpl-mine-1"
    first, second = (served.post(CHAT, MESSAGES).headers["x-request-id"] for _ in "ab")
    assert first != second


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prefix", ["", "chatcmpl-"])
def test_cancel(served: Served, stream: bool, prefix: str) -> None:
    served.client.step_seconds = 0.01
    body = MESSAGES | {"request_id": "gone", "ignore_eos": True, "max_tokens": 900}
    replies: list[Reply] = []
    thread = threading.Thread(
        target=lambda: replies.append(served.post(CHAT, body | {"stream": stream}))
    )
    thread.start()
    wait_until(lambda: len(served.client.submitted) == 1)
    assert served.post(f"/v1/requests/{prefix}gone/cancel", None).json["cancelled"]
    thread.join()
    wait_until(lambda: len(served.client.aborted) == 1)
    [reply] = replies
    choice = (reply.events[-1] if stream else reply.json)["choices"][0]
    assert choice["finish_reason"] == "cancelled"
    assert served.post("/v1/requests/gone/cancel", None).status == 404


def test_keep_alive_comments_while_nothing_comes(served: Served) -> None:
    served.service.keep_alive_seconds = 0.02
    served.client.gate.clear()
    with served.open_raw(CHAT, MESSAGES | {"stream": True}) as raw:
        received = b""
        while received.count(b": keep-alive\n\n") < 3:
            received += raw.recv(65536)
        assert b"[DONE]" not in received
        served.client.gate.set()
        while b"[DONE]" not in received:
            received += raw.recv(65536)
    lines = [line for line in received.decode().splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER


def test_embeddings_are_refused(served: Served) -> None:
    reply = served.post("/v1/embeddings", {"input": "Hi"})
    assert (reply.status, reply.json["error"]["param"]) == (400, "model")


def test_tokenize_and_back(served: Served) -> None:
    text = "Hello wörld 😀"
    reply = served.post("/tokenize", {"prompt": text, "return_token_strs": True}).json
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert served.post("/detokenize", {"tokens": reply["tokens"]}).json == {"prompt": text}
    for body in ({}, {"prompt": "a", "messages": MESSAGES["messages"]}):
        assert served.post("/tokenize", body).status == 400
    for tokens in ([512], [-1], ["a"], [2**40]):
        assert served.post("/detokenize", {"tokens": tokens}).status == 400
