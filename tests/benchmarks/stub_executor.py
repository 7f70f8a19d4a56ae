"""An executor process that computes nothing: each token is the last one plus one, at a steady pace.

Run as a script by stub_server.py; ENGINEWRIGHT_STUB_STEP_MS says how long a step takes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, run
from enginewright.runtime.session import Batch, Float32Array, Sampling, SessionLimits, StepResult

VOCAB_SIZE = 1024
STREAMS = 256


class StubSession:
    """Takes 256 sequences a step."""

    def __init__(self) -> None:
        self.limits = SessionLimits(
            max_batch_size=STREAMS,
            max_num_tokens=8192,
            max_seq_len=2048,
            num_blocks=STREAMS * 64,
            block_tokens=32,
            vocab_size=VOCAB_SIZE,
        )
        self._seconds = float(os.environ.get("ENGINEWRIGHT_STUB_STEP_MS", "5")) / 1e3
        self._tokens = np.zeros(0, np.int32)

    def launch(self, batch: Batch) -> None:
        self._tokens = ((batch.token_ids[batch.logit_rows] + 1) % VOCAB_SIZE).astype(np.int32)

    def sample(self, sampling: Sampling | None) -> None:
        pass

    def wait(self) -> StepResult:
        time.sleep(self._seconds)
        rows = len(self._tokens)
        return StepResult(
            tokens=self._tokens,
            logprobs=np.full(rows, -1.0, np.float32),
            top_ids=np.full((rows, 20), -1, np.int32),
            top_logprobs=np.full((rows, 20), -1.0, np.float32),
            step_seconds=self._seconds,
        )

    def sample_logits(self, logits: Float32Array, sampling: Sampling) -> StepResult:
        raise NotImplementedError

    def logits(self, batch: Batch) -> Float32Array:
        raise NotImplementedError

    def copy_block(self, source: int, target: int) -> None:
        pass

    def read_block(self, block: int) -> bytes:
        return b""

    def write_block(self, block: int, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def open_stub(folder: Path, config: ExecutorConfig) -> OpenedEngine:
    return OpenedEngine(StubSession(), {"name": "stub"})


if __name__ == "__main__":
    sys.exit(run(sys.argv[-1], open_stub))
