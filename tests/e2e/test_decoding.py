"""Guided answers, drafts and prompt log-probabilities, over an engine of each kind."""

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

from .conftest import for_gpus, rounding

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


def same(engine: Path, found: list[RequestOutput], expected: list[RequestOutput]) -> None:
    """Answers are equal, and their log-probabilities: bit by bit on the CPU."""
    for first, second in zip(found, expected, strict=True):
        one, other = first.outputs[0], second.outputs[0]
        assert one.token_ids == other.token_ids
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        sums = (one.cumulative_logprob or 0.0, other.cumulative_logprob or 0.0)  # None: not asked
        assert sums[0] == pytest.approx(sums[1], rel=0, abs=32 * rounding(engine))


def ask(llm: LLM, guided: list[Guided]) -> tuple[list[RequestOutput], list[RequestOutput]]:
    """The plain requests and the guided ones, all at once."""
    params = [SamplingParams(max_tokens=80, temperature=0, guided=one) for one in guided]
    prompts = [*(prompt for prompt, _ in PLAIN), *["A person, as JSON:"] * len(guided)]
    outputs = llm.generate(prompts, [*(one for _, one in PLAIN), *params])
    assert isinstance(outputs, list)
    return outputs[: len(PLAIN)], outputs[len(PLAIN) :]


def test_answers_with_and_without_grammars_drafts_and_overlap(engine: Path) -> None:
    with open_llm(engine) as llm:
        expected, _ = ask(llm, [])
        company, guided = ask(llm, GUIDED)
        same(engine, company, expected)
        check_guided(guided, for_gpus(engine))
        with pytest.raises(RequestError, match="cannot be followed"):
            llm.generate("x", SamplingParams(guided=Guided("regex", "(")))
        check_prompt_logprobs(llm, rounding(engine))
    for config in (
        {"speculative": "ngram"},
        {"speculative": "ngram", "overlap": True, "draft_tokens": 7},
        {"speculative": str(engine)},
    ):
        with open_llm(engine, **config) as llm:
            company, again = ask(llm, GUIDED)
            same(engine, company, expected)
            same(engine, again, guided)
            figures = llm.client.stats()["speculative"]
            # A random model does not repeat itself, which is all that n-grams can guess.
            repeats = config["speculative"] != "ngram" or not for_gpus(engine)
            accepted = figures["num_accepted_tokens"]
            assert (accepted > 0) >= repeats, config
            assert accepted <= figures["num_draft_tokens"]


def test_logits_processors_cross_to_the_executor_and_harm_nobody(engine: Path) -> None:
    forbidden: list[int] = []

    def forbid(tokens: list[int], logits: Any) -> None:
        logits[forbidden] = -np.inf

    def fail_late(tokens: list[int], logits: Any) -> Any:
        if len(tokens) > 12:
            raise LookupError("too long")
        return logits * 2

    plain = SamplingParams(max_tokens=24, temperature=0, logprobs=1)
    unchanged = SamplingParams(
        max_tokens=24, temperature=0, logprobs=1, logits_processor=lambda tokens, logits: None
    )
    for overlap in (False, True):
        with open_llm(engine, overlap=overlap) as llm:
            ask_one = partial(llm.generate, PLAIN[0][0])
            expected = ask_one(plain)
            assert isinstance(expected, RequestOutput)
            forbidden[:] = expected.outputs[0].token_ids[:5]
            without = msgspec.structs.replace(plain, logits_processor=forbid)
            late = msgspec.structs.replace(plain, logits_processor=[forbid, fail_late])
            each = (plain, unchanged, without, late)
            running = [llm.generate_async(PLAIN[0][0], one) for one in each]
            same(engine, [one.result() for one in running[:2]], [expected] * 2)
            changed = running[2].result().outputs[0]
            assert len(changed.token_ids) == 24
            assert not set(changed.token_ids) & set(forbidden)
            with pytest.raises(RequestError, match="fail_late raised LookupError: too long"):
                running[3].result()
            seeded = SamplingParams(max_tokens=9, seed=4, n=2, logits_processor=forbid)
            again = [ask_one(seeded), ask_one(seeded)]
            same(engine, again[:1], again[1:])  # type: ignore[arg-type]
            with pytest.raises(RequestError, match="does not go with beam search"):
                ask_one(SamplingParams(use_beam_search=True, n=2, logits_processor=forbid))


def check_guided(outputs: list[RequestOutput], rambles: bool) -> None:
    """A random model rambles: between the parts of an object it may write blanks without end."""
    schema, anything, regex, choice, grammar = (output.outputs[0] for output in outputs)
    if schema.finish_reason == "stop":
        person = json.loads(schema.text)
        assert set(person) == {"name", "age", "colour"}
        assert person["colour"] in ("red", "green", "blue")
        assert 0 <= person["age"] <= 120
    assert schema.finish_reason == "stop" or rambles
    assert anything.text.lstrip().startswith("{")
    if anything.finish_reason == "stop":
        assert isinstance(json.loads(anything.text), dict)
    assert re.fullmatch("[A-Z][a-z]{2,8}-[0-9]{3}", regex.text)
    assert choice.text in ("Paris", "London", "Rome")
    assert re.fullmatch("answer: [a-z]{3,6} [0-9]{2}", grammar.text)
    assert {one.finish_reason for one in (regex, choice, grammar)} == {"stop"}


def check_prompt_logprobs(llm: LLM, rounding: float) -> None:
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
    for one, other in zip(answer, first.outputs[0].logprobs, strict=True):
        assert one is not None
        wanted = {token: value.logprob for token, value in other.items()}
        found = {token: value.logprob for token, value in one.items()}
        assert found == pytest.approx(wanted, rel=0, abs=rounding)
