"""Host time of a step without a model: `python -m tests.benchmarks.scheduler`."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.loop import PyExecutor
from enginewright.executor.messages import Command, Reply, Submit
from enginewright.executor.sampling import TokenParams
from enginewright.runtime.session import Batch, Float32Array, Sampling, SessionLimits, StepResult

MAX_SEQ_LEN = 8192
STEPS = 400
REPEATS = 5
KINDS = {
    "greedy": TokenParams(),
    "sampled": TokenParams(temperature=0.8, top_p=0.9, seed=1),
    "logprobs 5": TokenParams(temperature=0.8, seed=1, num_logprobs=5),
    "penalties": TokenParams(repetition_penalty=1.1),
}


class NullSession:
    """Answers at once, always with the same token."""

    def __init__(self, limits: SessionLimits) -> None:
        self.limits = limits
        self._rows = self._width = 0

    def launch(self, batch: Batch) -> None:
        self._rows = len(batch.logit_rows)

    def sample(self, sampling: Sampling | None) -> None:
        assert sampling is not None
        self._width = max(0, int(sampling.num_logprobs.max(initial=0)))

    def wait(self) -> StepResult:
        rows, top = self._rows, (self._rows, self._width)
        return StepResult(
            np.ones(rows, np.int32),
            np.zeros(rows, np.float32),
            np.ones(top, np.int32),
            np.zeros(top, np.float32),
            0.0,
        )

    def sample_logits(self, logits: Float32Array, sampling: Sampling) -> StepResult:
        raise NotImplementedError

    def logits(self, batch: Batch) -> Float32Array:
        raise NotImplementedError

    def copy_block(self, source: int, target: int) -> None:
        raise NotImplementedError

    def read_block(self, block: int) -> bytes:
        raise NotImplementedError

    def write_block(self, block: int, data: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


class EncodingChannel:
    """Encodes replies as the real channel does, and drops them."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self._encode = msgspec.msgpack.Encoder().encode

    def receive(self, timeout: float | None) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def send(self, message: Reply) -> None:
        self._encode(message)


def measure(running: int, params: TokenParams) -> float:
    """Return microseconds of one generation step, the best of several runs of many steps."""
    blocks = running * (MAX_SEQ_LEN // 32)
    limits = SessionLimits(running, max(2048, running), MAX_SEQ_LEN, blocks, 32, 50_000)
    channel = EncodingChannel()
    executor = PyExecutor(NullSession(limits), channel, ExecutorConfig(max_queue=running))
    params = msgspec.structs.replace(params, max_tokens=4000)
    for number in range(running):
        channel.commands.append(Submit(f"request-{number}", [2] * 100, params, 0.0))
    while executor.stats.generation_tokens < 2 * running:
        executor.fetch()
        executor.step()
    best = float("inf")
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for _ in range(STEPS):
            executor.fetch()
            executor.step()
        best = min(best, time.perf_counter() - begun)
    return best / STEPS * 1e6


def main() -> None:
    """Print a table."""
    print(f"{'microseconds a step':<20}{'1':>8}{'32':>8}{'256':>8} running")
    for name, params in KINDS.items():
        times = "".join(f"{measure(running, params):>8.0f}" for running in (1, 32, 256))
        print(f"{name:<20}{times}")


if __name__ == "__main__":
    main()
