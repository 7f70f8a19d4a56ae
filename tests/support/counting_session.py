"""A session that computes nothing: each token is the last one plus one, at a steady pace."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from enginewright.runtime.session import (
    Batch,
    Float32Array,
    Int32Array,
    Sampling,
    SessionLimits,
    StepResult,
)


class CountingSession:
    """Takes two steps in flight; each takes `seconds` from the moment it is waited for."""

    def __init__(self, limits: SessionLimits, seconds: float) -> None:
        self.limits = limits
        self._seconds = seconds
        self._flights: deque[Int32Array] = deque()  # tokens of the steps in flight
        self._last = np.zeros(1, np.int32)  # of the step launched last

    def launch(self, batch: Batch) -> None:
        last = batch.token_ids[batch.logit_rows]
        unknown = last < 0  # they name rows of the step before
        last[unknown] = self._last[-1 - last[unknown]]
        self._last = ((last + 1) % self.limits.vocab_size).astype(np.int32)
        self._flights.append(self._last)

    def sample(self, sampling: Sampling | None) -> None:
        pass

    def wait(self) -> StepResult:
        time.sleep(self._seconds)
        tokens = self._flights.popleft()
        rows = len(tokens)
        return StepResult(
            tokens=tokens,
            logprobs=np.full(rows, -1.0, np.float32),
            top_ids=np.full((rows, 20), -1, np.int32),
            top_logprobs=np.full((rows, 20), -1.0, np.float32),
            step_seconds=self._seconds,
        )

    def sample_logits(self, logits: Float32Array, sampling: Sampling) -> StepResult:
        raise AssertionError("it has no logits")

    def logits(self, batch: Batch) -> Float32Array:
        raise AssertionError("it has no logits")

    def copy_block(self, source: int, target: int) -> None:
        """There is nothing in a block."""

    def read_block(self, block: int) -> bytes:
        return b""

    def write_block(self, block: int, data: bytes) -> None:
        """There is nothing in a block."""

    def close(self) -> None:
        """There is nothing to release."""
