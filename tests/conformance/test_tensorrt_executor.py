"""The executor over GPU engines on the stand-in: every way of scheduling gives the same tokens."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import numpy as np
import pytest

from enginewright import LLM, SamplingParams
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.ngram_drafter import NgramDrafter
from enginewright.executor.sampling import Guided
from enginewright.runtime.artifact import Engine
from enginewright.serve.outputs import RequestOutput
from tests.support.cpu_engine import make_batch
from tests.support.executor_run import Answer, Run
from tests.support.gpu_engine import GpuSpec, export_engine, open_stand_in
from tests.support.gpu_machine import gpu_machine

SPECS = {
    "gather": GpuSpec("qwen2", max_num_tokens=48, changes=(("vocab_size", 257),)),
    "plugin": GpuSpec(
        "mistral",
        attention="plugin",
        kv_dtype="int8",
        max_num_tokens=48,
        changes=(("vocab_size", 257), ("sliding_window", 50)),
    ),
}
SHARED = [(i * 37) % 240 + 5 for i in range(75)]
PROMPTS = [[*SHARED[:70], 200 + i, *SHARED[i : i + 9]] for i in range(6)]
TOKENS = 12


@pytest.fixture(scope="module", params=list(SPECS))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return export_engine(SPECS[request.param], tmp_path_factory.mktemp("gpu") / request.param)


@contextlib.contextmanager
def run_of(engine: Engine, blocks: int, config: ExecutorConfig, **options: object) -> Iterator[Run]:
    session = open_stand_in(engine, blocks, max_batch_size=8)
    with contextlib.closing(session):
        yield Run(session, config, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def expected(engine: Engine) -> list[Answer]:
    """Each prompt alone, in an executor with an empty cache."""
    answers: list[Answer] = []
    for index, prompt in enumerate(PROMPTS):
        with run_of(engine, 64, ExecutorConfig(overlap=False)) as run:
            answers += run.answers([prompt], TOKENS, index)
    return answers


def same(found: list[Answer], expected: list[Answer]) -> None:
    """Tokens are equal; log-probabilities differ by the order of float sums only."""
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    for (_, values), (_, wanted) in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, wanted, atol=2e-3)


def test_greedy_tokens_are_the_references(engine: Engine, expected: list[Answer]) -> None:
    """The interpreter goes the same way: prompt 0 is greedy, and asks for no penalty."""
    spec = next(s for n, s in SPECS.items() if n == engine.folder.name)
    reference, tokens = spec.reference(), list(PROMPTS[0])
    for _ in range(TOKENS):
        table = np.arange(-(-len(tokens) // 32))
        logits = reference.step(make_batch([tokens], [0], [table], [len(tokens) - 1]))
        tokens.append(int(logits[0].argmax()))
    assert tuple(tokens[len(PROMPTS[0]) :]) == expected[0][0]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization", "static_batch"])
def test_policies_under_pressure_with_and_without_overlap(
    engine: Engine, expected: list[Answer], policy: str, overlap: bool
) -> None:
    config = ExecutorConfig(capacity_policy=policy, overlap=overlap)  # type: ignore[arg-type]
    with run_of(engine, 7, config) as run:
        same(run.answers(PROMPTS, TOKENS), expected)
        same(run.answers(PROMPTS, TOKENS), expected)  # from the prefix cache
        run.answers([[7 + i] * 90 for i in range(6)], 2)  # pushes everything out
        same(run.answers(PROMPTS, TOKENS), expected)
        assert run.executor.stats.cached_tokens > 0


def test_drafts_change_no_token(engine: Engine, expected: list[Answer]) -> None:
    with run_of(engine, 40, ExecutorConfig(draft_tokens=3), drafter=NgramDrafter()) as run:
        same(run.answers(PROMPTS, TOKENS), expected)


def test_the_llm_class_over_an_executor_process(engine: Engine) -> None:
    with gpu_machine(), LLM(engine.folder) as llm:
        guided = Guided("regex", "[A-Z][a-z]{2,8}-[0-9]{3}")
        params = [
            SamplingParams(max_tokens=6, temperature=0, logprobs=2, prompt_logprobs=1),
            SamplingParams(max_tokens=60, temperature=0, guided=guided),
            SamplingParams(max_tokens=6, temperature=0.9, seed=3, n=2),
        ]
        outputs = llm.generate(["Hello", "A code:", "Once"], params)
        assert isinstance(outputs, list)
        plain, guided_answer, two = outputs
        assert len(plain.outputs[0].token_ids) == 6
        assert plain.prompt_logprobs is not None
        assert re.fullmatch("[A-Z][a-z]{2,8}-[0-9]{3}", guided_answer.outputs[0].text)
        assert len(two.outputs) == 2
        again = llm.generate("Hello", params[0])
        assert isinstance(again, RequestOutput)
        assert again.outputs[0].token_ids == plain.outputs[0].token_ids
