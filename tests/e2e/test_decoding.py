"""Guided answers, drafts and prompt log-probabilities on the real model."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.sampling import Guided, SamplingParams
from enginewright.runtime.errors import RequestError
from enginewright.serve.llm import LLM
from enginewright.serve.outputs import RequestOutput

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colour": {"enum": ["red", "green", "blue"]},
    },
    "required": ["name", "age", "colour"],
    "additionalProperties": False,
}
PLAIN = [
    ("The capital of France is", SamplingParams(max_tokens=24, temperature=0, logprobs=1)),
    ("Once upon a time", SamplingParams(max_tokens=24, temperature=0.9, seed=3, top_p=0.9)),
    ("1 2 3 4 1 2 3 4 1 2 3", SamplingParams(max_tokens=32, temperature=0)),
    ("a b a b a b a b", SamplingParams(max_tokens=32, temperature=1.0, seed=8)),
    ("to be or not to be", SamplingParams(max_tokens=24, temperature=0, repetition_penalty=1.2)),
]
GUIDED = [
    Guided("json_schema", json.dumps(SCHEMA)),
    Guided("json_object"),
    Guided("regex", "[A-Z][a-z]{2,8}-[0-9]{3}"),
    Guided("choice", '["Paris", "London", "Rome"]'),
    Guided("grammar", 'start: "answer: " /[a-z]{3,6}/ " " number\nnumber: /[0-9]{2}/'),
]


def open_llm(engine: Path, **config: object) -> LLM:
    options = ExecutorConfig(threads=1, kv_cache_memory=1 << 29, max_batch_size=16, **config)  # type: ignore[arg-type]
    return LLM(engine, client=ExecutorClient.start(engine, options))


def facts(output: RequestOutput) -> tuple[list[int], str, str | None, float | None]:
    one = output.outputs[0]
    return one.token_ids, one.text, one.finish_reason, one.cumulative_logprob


def ask(llm: LLM, guided: list[Guided]) -> tuple[list[RequestOutput], list[RequestOutput]]:
    """The plain requests and the guided ones, all at once."""
    params = [SamplingParams(max_tokens=80, temperature=0, guided=one) for one in guided]
    prompts = [*(prompt for prompt, _ in PLAIN), *["A person, as JSON:"] * len(guided)]
    outputs = llm.generate(prompts, [*(one for _, one in PLAIN), *params])
    assert isinstance(outputs, list)
    return outputs[: len(PLAIN)], outputs[len(PLAIN) :]


def test_answers_with_and_without_grammars_drafts_and_overlap(smollm2_engine: Path) -> None:
    with open_llm(smollm2_engine) as llm:
        plain, _ = ask(llm, [])
        expected = [facts(output) for output in plain]
        company, guided = ask(llm, GUIDED)
        assert [facts(output) for output in company] == expected
        check_guided(guided)
        with pytest.raises(RequestError, match="cannot be followed"):
            llm.generate("x", SamplingParams(guided=Guided("regex", "(")))
        check_prompt_logprobs(llm)
    for config in (
        {"speculative": "ngram"},
        {"speculative": "ngram", "overlap": True, "draft_tokens": 7},
        {"speculative": str(smollm2_engine)},
    ):
        with open_llm(smollm2_engine, **config) as llm:
            company, again = ask(llm, GUIDED)
            assert [facts(output) for output in company] == expected, config
            assert [facts(output) for output in again] == [facts(output) for output in guided]
            figures = llm.client.stats()["speculative"]
            assert 0 < figures["num_accepted_tokens"] <= figures["num_draft_tokens"]


def test_logits_processors_cross_to_the_executor_and_harm_nobody(smollm2_engine: Path) -> None:
    forbidden: list[int] = []

    def forbid(tokens: list[int], logits: Any) -> None:
        logits[forbidden] = -np.inf

    def fail_late(tokens: list[int], logits: Any) -> Any:
        if len(tokens) > 12:
            raise LookupError("too long")
        return logits * 2

    plain = SamplingParams(max_tokens=24, temperature=0, logprobs=1)
    same = SamplingParams(
        max_tokens=24, temperature=0, logprobs=1, logits_processor=lambda tokens, logits: None
    )
    for overlap in (False, True):
        with open_llm(smollm2_engine, overlap=overlap) as llm:
            ask_one = partial(llm.generate, PLAIN[0][0])
            expected = ask_one(plain)
            assert isinstance(expected, RequestOutput)
            forbidden[:] = expected.outputs[0].token_ids[:5]
            without = msgspec.structs.replace(plain, logits_processor=forbid)
            late = msgspec.structs.replace(plain, logits_processor=[forbid, fail_late])
            running = [llm.generate_async(PLAIN[0][0], one) for one in (plain, same, without, late)]
            assert facts(running[0].result()) == facts(running[1].result()) == facts(expected)
            changed = running[2].result().outputs[0]
            assert len(changed.token_ids) == 24
            assert not set(changed.token_ids) & set(forbidden)
            with pytest.raises(RequestError, match="fail_late raised LookupError: too long"):
                running[3].result()
            seeded = SamplingParams(max_tokens=9, seed=4, n=2, logits_processor=forbid)
            assert facts(ask_one(seeded)) == facts(ask_one(seeded))  # type: ignore[arg-type]
            with pytest.raises(RequestError, match="does not go with beam search"):
                ask_one(SamplingParams(use_beam_search=True, n=2, logits_processor=forbid))


def check_guided(outputs: list[RequestOutput]) -> None:
    schema, anything, regex, choice, grammar = (output.outputs[0] for output in outputs)
    person = json.loads(schema.text)
    assert set(person) == {"name", "age", "colour"}
    assert person["colour"] in ("red", "green", "blue")
    assert 0 <= person["age"] <= 120
    assert anything.text.lstrip().startswith("{")
    if anything.finish_reason == "stop":
        assert isinstance(json.loads(anything.text), dict)
    assert re.fullmatch("[A-Z][a-z]{2,8}-[0-9]{3}", regex.text)
    assert choice.text in ("Paris", "London", "Rome")
    assert re.fullmatch("answer: [a-z]{3,6} [0-9]{2}", grammar.text)
    assert {one.finish_reason for one in (schema, regex, choice, grammar)} == {"stop"}


def check_prompt_logprobs(llm: LLM) -> None:
    """A prompt that continues its own greedy answer has that answer's log-probabilities."""
    params = SamplingParams(max_tokens=8, temperature=0, logprobs=1)
    first = llm.generate("The capital of France is", params)
    assert isinstance(first, RequestOutput)
    prompt = [*first.prompt_token_ids, *first.outputs[0].token_ids]
    judged = llm.generate(prompt, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1))
    assert isinstance(judged, RequestOutput)
    assert judged.prompt_logprobs is not None
    assert judged.prompt_logprobs[0] is None
    assert len(judged.prompt_logprobs) == len(prompt)
    answer = judged.prompt_logprobs[len(first.prompt_token_ids) :]
    assert [one and {k: v.logprob for k, v in one.items()} for one in answer] == [
        {k: v.logprob for k, v in one.items()} for one in first.outputs[0].logprobs
    ]
