"""The rule of one result through the whole product: tokens and logprobs compared bit by bit.

A GPU engine promises the tokens; its log-probabilities are held to the order of float sums.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from enginewright import LLM, SamplingParams
from enginewright.builder.targets.cpu.isa import runnable_levels
from enginewright.runtime import machine
from enginewright.serve.outputs import RequestOutput

from .conftest import build_engine, for_gpus, rounding
from .texts.prompts import PROMPTS

LONG = " ".join(PROMPTS[i % 20] for i in range(60))
WATCHED = (*PROMPTS[:6], LONG, LONG[: len(LONG) // 2])
LEVELS = [level.name for level in runnable_levels(machine.detect())]
STEPS = ((16, 2), (64, 7), (512, 2))
"""Tokens of a step and threads. Seven threads on fewer cores take each other's parts of the work
all the time."""
Answer = tuple[tuple[int, ...], tuple[float, ...], str]


def params(index: int, tokens: int) -> SamplingParams:
    """Greedy for some prompts, sampled with a seed for the others."""
    if index % 2:
        return SamplingParams(max_tokens=tokens, temperature=0.8, top_p=0.9, seed=index, logprobs=2)
    return SamplingParams(max_tokens=tokens, temperature=0, logprobs=2)


def answer(output: RequestOutput) -> Answer:
    """Everything of an answer that must not depend on circumstances."""
    one = output.outputs[0]
    likely = tuple(value.logprob for entry in one.logprobs for _, value in sorted(entry.items()))
    return tuple(one.token_ids), likely, str(one.finish_reason)


def alone(llm: LLM, tokens: int) -> list[Answer]:
    return [
        answer(one(llm.generate(prompt, params(i, tokens)))) for i, prompt in enumerate(WATCHED)
    ]


def one(output: RequestOutput | list[RequestOutput]) -> RequestOutput:
    assert isinstance(output, RequestOutput)
    return output


def in_company(llm: LLM, tokens: int, seed: int) -> list[Answer]:
    """The watched prompts among 24 others, all at once, in a random order."""
    shuffle = random.Random(seed)
    others = [f"{shuffle.choice(PROMPTS)} {shuffle.choice(PROMPTS)}" for _ in range(24)]
    jobs: list[tuple[str, SamplingParams]] = [
        (prompt, params(i, tokens)) for i, prompt in enumerate((*WATCHED, *others))
    ]
    order = list(range(len(jobs)))
    shuffle.shuffle(order)
    outputs = llm.generate([jobs[i][0] for i in order], [jobs[i][1] for i in order])
    assert isinstance(outputs, Sequence)
    found = dict(zip(order, outputs, strict=True))
    return [answer(found[i]) for i in range(len(WATCHED))]


def same(engine: Path, found: list[Answer], expected: list[Answer]) -> None:
    for (tokens, values, reason), (wanted, logprobs, ended) in zip(found, expected, strict=True):
        assert (tokens, reason) == (wanted, ended)
        np.testing.assert_allclose(values, logprobs, rtol=0, atol=rounding(engine))


def test_answers_depend_on_nothing_but_the_prompt(engine: Path) -> None:
    # Numpy samples for a GPU engine, and threads mean nothing to it.
    tokens, steps = (4, STEPS[::2]) if for_gpus(engine) else (24, STEPS)
    with LLM(engine, threads=1, kv_cache_memory=1 << 30) as llm:
        expected = alone(llm, tokens)
        same(engine, in_company(llm, tokens, seed=0), expected)
    for chunk, threads in steps:
        batch = min(chunk, 32)
        with LLM(
            engine,
            threads=threads,
            max_num_tokens=chunk,
            max_batch_size=batch,
            kv_cache_memory=1 << 30,
        ) as llm:
            same(engine, in_company(llm, tokens, seed=chunk), expected)


@pytest.mark.parametrize("isa", LEVELS[1:])
def test_every_level_is_consistent_in_itself(isa: str, checkpoint: Path) -> None:
    engine = build_engine("int8", "--isa", isa, "--no-self-check")
    with LLM(
        engine, threads=2, kv_cache_memory=1 << 30, max_num_tokens=64, max_batch_size=32
    ) as llm:
        expected = alone(llm, 4)
        assert in_company(llm, 4, seed=1) == expected
