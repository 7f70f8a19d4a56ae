"""The rule of one result through the whole product: tokens and logprobs compared bit by bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from enginewright import LLM, SamplingParams
from enginewright.builder.targets.cpu.isa import runnable_levels
from enginewright.runtime import machine
from enginewright.serve.outputs import RequestOutput

from .conftest import build_engine
from .texts.prompts import PROMPTS

LONG = " ".join(PROMPTS[i % 20] for i in range(60))
WATCHED = (*PROMPTS[:6], LONG, LONG[: len(LONG) // 2])
LEVELS = [level.name for level in runnable_levels(machine.detect())]
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


def test_answers_depend_on_nothing_but_the_prompt(smollm2_engine: Path) -> None:
    with LLM(smollm2_engine, threads=1, kv_cache_memory=1 << 30) as llm:
        expected = alone(llm, 24)
        assert in_company(llm, 24, seed=0) == expected
    # Seven threads on fewer cores take each other's parts of the work all the time.
    for chunk, threads in ((16, 2), (64, 7), (512, 2)):
        batch = min(chunk, 32)
        with LLM(
            smollm2_engine,
            threads=threads,
            max_num_tokens=chunk,
            max_batch_size=batch,
            kv_cache_memory=1 << 30,
        ) as llm:
            assert in_company(llm, 24, seed=chunk) == expected, (
                f"chunks of {chunk}, {threads} threads"
            )


@pytest.mark.parametrize("isa", LEVELS[1:])
def test_every_level_is_consistent_in_itself(isa: str, checkpoint: Path) -> None:
    engine = build_engine("int8", "--isa", isa, "--no-self-check")
    with LLM(
        engine, threads=2, kv_cache_memory=1 << 30, max_num_tokens=64, max_batch_size=32
    ) as llm:
        expected = alone(llm, 4)
        assert in_company(llm, 4, seed=1) == expected
