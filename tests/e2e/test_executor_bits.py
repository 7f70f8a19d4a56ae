"""The executor over the real engine: every way of scheduling gives the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.loop import PyExecutor
from enginewright.executor.main import OpenedEngine, open_disk_tier
from enginewright.executor.messages import StepOutputs, Submit, TokenOutput
from enginewright.executor.sampling import TokenParams
from enginewright.runtime.artifact import open_engine
from enginewright.runtime.session import open_session
from tests.executor.harness import ListChannel

Answer = tuple[tuple[int, ...], tuple[float, ...]]
SHARED = [(i * 37) % 900 + 20 for i in range(75)]
PROMPTS = [[*SHARED[:70], 500 + i, *SHARED[i : i + 9]] for i in range(6)]


class Run:
    """One executor in this process, with room for so many KV blocks."""

    def __init__(self, folder: Path, num_blocks: int, own_threads: bool, config: ExecutorConfig):
        engine = open_engine(folder)
        self.session = open_session(
            engine,
            threads=1,
            kv_cache_memory=engine.manifest.kv.block_bytes * num_blocks,
            max_batch_size=8,
            max_num_tokens=48,
            own_threads=own_threads,
        )
        self.channel = ListChannel()
        opened = OpenedEngine(
            self.session, {}, None, engine.manifest.name.encode(), engine.manifest.kv.block_bytes
        )
        self.disk = open_disk_tier(config, opened)
        self.executor = PyExecutor(self.session, self.channel, config, disk=self.disk)
        self.count = 0

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()
        self.session.close()

    def answers(self, prompts: list[list[int]], tokens: int, first: int = 0) -> list[Answer]:
        """Serve prompts together; what each is sampled with depends on its number, from `first`."""
        names: list[str] = []
        for index, prompt in enumerate(prompts, first):
            names.append(f"r{self.count}")
            self.count += 1
            params = TokenParams(
                max_tokens=tokens,
                temperature=0.9 if index % 2 else 0.0,
                repetition_penalty=1.2 if index % 3 == 2 else 1.0,
                seed=index,
                num_logprobs=1,
                cache_salt="s" if index == 5 else None,
            )
            self.channel.commands.append(Submit(names[-1], prompt, params, 0.0))
        self.executor.fetch()
        while not self.executor.scheduler.idle:
            self.executor.step()
            self.executor.scheduler.check()
        outputs: dict[str, list[TokenOutput]] = {}
        for reply in self.channel.replies:
            assert isinstance(reply, StepOutputs)
            for output in reply.outputs:
                outputs.setdefault(output.request_id, []).append(output)
        self.channel.replies.clear()
        return [_answer(outputs[name]) for name in names]


def _answer(outputs: list[TokenOutput]) -> Answer:
    assert outputs[-1].finish_reason == "length", outputs[-1].error
    tokens = tuple(token for output in outputs for token in output.token_ids)
    values = tuple(one.logprob for output in outputs for one in output.logprobs or ())
    return tokens, values


@pytest.fixture(scope="module")
def expected(smollm2_engine: Path) -> list[Answer]:
    """Each prompt alone, in an executor with an empty cache."""
    answers: list[Answer] = []
    for index in range(len(PROMPTS)):
        run = Run(smollm2_engine, 64, False, ExecutorConfig())
        answers += run.answers([PROMPTS[index]], 20, index)
        run.close()
    return answers


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization", "static_batch"])
def test_policies_under_pressure_with_and_without_overlap(
    smollm2_engine: Path, expected: list[Answer], policy: str, overlap: bool
) -> None:
    config = ExecutorConfig(capacity_policy=policy, overlap=overlap)  # type: ignore[arg-type]
    run = Run(smollm2_engine, 7, overlap, config)
    cold = run.answers(PROMPTS, 20)
    warm = run.answers(PROMPTS, 20)
    run.answers([[7 + i] * 90 for i in range(6)], 4)  # pushes everything out
    evicted = run.answers(PROMPTS, 20)
    assert cold == warm == evicted == expected
    stats = run.executor.stats
    assert stats.cached_tokens > 0
    assert (stats.pauses > 0) == (policy == "max_utilization")
    run.close()
