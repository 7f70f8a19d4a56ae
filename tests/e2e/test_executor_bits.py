"""The executor over the real engine: every way of scheduling gives the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, open_disk_tier
from enginewright.runtime.artifact import open_engine
from enginewright.runtime.session import open_session
from tests.support.executor_run import Answer, Run

SHARED = [(i * 37) % 900 + 20 for i in range(75)]
PROMPTS = [[*SHARED[:70], 500 + i, *SHARED[i : i + 9]] for i in range(6)]


class EngineRun(Run):
    """One executor in this process over an engine, with room for so many KV blocks."""

    def __init__(self, folder: Path, num_blocks: int, own_threads: bool, config: ExecutorConfig):
        engine = open_engine(folder)
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


@pytest.fixture(scope="module")
def expected(smollm2_engine: Path) -> list[Answer]:
    """Each prompt alone, in an executor with an empty cache."""
    answers: list[Answer] = []
    for index in range(len(PROMPTS)):
        run = EngineRun(smollm2_engine, 64, False, ExecutorConfig())
        answers += run.answers([PROMPTS[index]], 20, index)
        run.close()
    return answers


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization", "static_batch"])
def test_policies_under_pressure_with_and_without_overlap(
    smollm2_engine: Path, expected: list[Answer], policy: str, overlap: bool
) -> None:
    config = ExecutorConfig(capacity_policy=policy, overlap=overlap)  # type: ignore[arg-type]
    run = EngineRun(smollm2_engine, 7, overlap, config)
    cold = run.answers(PROMPTS, 20)
    warm = run.answers(PROMPTS, 20)
    run.answers([[7 + i] * 90 for i in range(6)], 4)  # pushes everything out
    evicted = run.answers(PROMPTS, 20)
    assert cold == warm == evicted == expected
    stats = run.executor.stats
    assert stats.cached_tokens > 0
    assert (stats.pauses > 0) == (policy == "max_utilization")
    run.close()
