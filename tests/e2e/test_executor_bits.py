"""The executor over an engine: every way of scheduling gives the same answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, open_disk_tier
from enginewright.runtime.artifact import open_engine
from enginewright.runtime.session import open_session
from tests.support.executor_run import Answer, Run

from .conftest import machine_of, rounding

SHARED = [(i * 37) % 900 + 20 for i in range(75)]
PROMPTS = [[*SHARED[:70], 500 + i, *SHARED[i : i + 9]] for i in range(6)]


class EngineRun(Run):
    """One executor in this process over an engine, with room for so many KV blocks."""

    def __init__(self, folder: Path, num_blocks: int, own_threads: bool, config: ExecutorConfig):
        engine = open_engine(folder)
        with machine_of(folder):
            session = open_session(
                engine,
                threads=1,
                kv_cache_memory=engine.manifest.kv.block_bytes * num_blocks,
                max_batch_size=8,
                max_num_tokens=48,
                own_threads=own_threads,
            )
        opened = OpenedEngine(
            session, {}, None, engine.manifest.name.encode(), engine.manifest.kv.block_bytes
        )
        self.disk = open_disk_tier(config, opened)
        super().__init__(session, config, disk=self.disk)

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()
        self.session.close()


def same(engine: Path, found: list[Answer], expected: list[Answer]) -> None:
    """Tokens are equal, and log-probabilities: bit by bit on the CPU."""
    for (tokens, values), (wanted, logprobs) in zip(found, expected, strict=True):
        assert tokens == wanted
        np.testing.assert_allclose(values, logprobs, rtol=0, atol=rounding(engine))


@pytest.fixture(scope="module")
def expected(engine_folder: Path) -> list[Answer]:
    """Each prompt alone, in an executor with an empty cache."""
    answers: list[Answer] = []
    for index in range(len(PROMPTS)):
        run = EngineRun(engine_folder, 64, False, ExecutorConfig())
        answers += run.answers([PROMPTS[index]], 20, index)
        run.close()
    return answers


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization", "static_batch"])
def test_policies_under_pressure_with_and_without_overlap(
    engine_folder: Path, expected: list[Answer], policy: str, overlap: bool
) -> None:
    config = ExecutorConfig(capacity_policy=policy, overlap=overlap)  # type: ignore[arg-type]
    run = EngineRun(engine_folder, 7, overlap, config)
    same(engine_folder, run.answers(PROMPTS, 20), expected)
    same(engine_folder, run.answers(PROMPTS, 20), expected)  # from the prefix cache
    run.answers([[7 + i] * 90 for i in range(6)], 4)  # pushes everything out
    same(engine_folder, run.answers(PROMPTS, 20), expected)
    stats = run.executor.stats
    assert stats.cached_tokens > 0
    assert (stats.pauses > 0) == (policy == "max_utilization")
    run.close()
