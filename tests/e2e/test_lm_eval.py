"""What lm-evaluation-harness asks a server for, and reads from its answers.

The requests and the reading are those of its model `local-completions` (version 0.4.13), which ran
against this server with the same figures: docs/bench.md says how.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from enginewright.serve.evaluate.choices import SessionScorer
from enginewright.serve.evaluate.logits import open_source
from enginewright.serve.tokenizer import Tokenizer

from .api import post
from .conftest import MODEL, Served, machine_of

QUESTIONS = [
    ("The capital of France is", [" Paris", " Berlin", " Madrid"]),
    ("Water freezes at zero degrees", [" Celsius", " litres", " of the north"]),
]


def payload(messages: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": messages,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }


def read(answer: dict[str, Any], context_lengths: list[int]) -> list[tuple[float, bool]]:
    """Return each prompt's log-likelihood after its context, and whether it is the greedy one."""
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    found: list[tuple[float, bool]] = []
    for choice, length in zip(choices, context_lengths, strict=True):
        values = choice["logprobs"]["token_logprobs"][length:-1]
        tops = choice["logprobs"]["top_logprobs"][length:-1]
        greedy = all(one == max(top.values()) for one, top in zip(values, tops, strict=True))
        found.append((sum(values), greedy))
    return found


@pytest.mark.parametrize("tokenized", [True, False], ids=["ids", "texts"])
def test_log_likelihoods(served: Served, tokenized: bool) -> None:
    tokenizer = Tokenizer(served.engine / "tokenizer")
    pairs = [(context, choice) for context, choices in QUESTIONS for choice in choices]
    ids = [tokenizer.encode(context + choice) for context, choice in pairs]
    lengths = [len(tokenizer.encode(context)) for context, _ in pairs]
    prompts: list[Any] = ids if tokenized else [context + choice for context, choice in pairs]
    status, answer = post(served, "/v1/completions", payload(prompts))
    assert status == 200
    found = read(answer, lengths)
    with machine_of(served.engine):
        source = open_source(str(served.engine), kv_cache_memory=64 << 20)
    try:
        scorer = SessionScorer(source, tokenizer)

        async def score() -> list[float]:
            return [await scorer.score(context, choice) for context, choice in pairs]

        expected = asyncio.run(score())
    finally:
        source.close()
    assert [total for total, _ in found] == pytest.approx(expected, abs=1e-4)
    served.must_know("it has not heard of Paris")
    assert found[0] == max(found[:3])  # Paris
    assert found[0][1]  # and greedy decoding would write it
    assert not found[1][1]


def test_generation_until_a_stop(served: Served) -> None:
    body = payload("Count: one, two, three, four,")
    del body["echo"], body["logprobs"]
    body |= {"max_tokens": 40, "stop": ["<|im_end|>"]}
    whole = post(served, "/v1/completions", body)[1]["choices"][0]["text"]
    stop = whole[20:24]
    body["stop"] = [stop, "<|im_end|>"]
    status, answer = post(served, "/v1/completions", body)
    assert status == 200
    assert answer["choices"][0]["text"] == whole[: whole.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
