"""An executor process over a toy session, run as a script: each token is the last one plus one."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, run
from enginewright.runtime.session import Batch, Float32Array, Sampling, SessionLimits, StepResult

VOCAB_SIZE = 300
STEP_SECONDS = 0.002


class ToySession:
    """Computes nothing; a step takes a little while."""

    def __init__(self) -> None:
        self.limits = SessionLimits(
            max_batch_size=4,
            max_num_tokens=64,
            max_seq_len=512,
            num_blocks=64,
            block_tokens=32,
            vocab_size=VOCAB_SIZE,
        )
        self._tokens = np.zeros(0, np.int32)

    def launch(self, batch: Batch) -> None:
        last = batch.token_ids[batch.logit_rows]
        self._tokens = ((last + 1) % VOCAB_SIZE).astype(np.int32)

    def sample(self, sampling: Sampling | None) -> None:
        pass

    def wait(self) -> StepResult:
        time.sleep(STEP_SECONDS)
        rows = len(self._tokens)
        return StepResult(
            tokens=self._tokens,
            logprobs=np.full(rows, -1.0, np.float32),
            top_ids=np.full((rows, 20), -1, np.int32),
            top_logprobs=np.full((rows, 20), -1.0, np.float32),
            step_seconds=STEP_SECONDS,
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
        pass


def open_toy(folder: Path, config: ExecutorConfig) -> OpenedEngine:
    return OpenedEngine(ToySession(), {"name": "toy"})


if __name__ == "__main__":
    sys.exit(run(sys.argv[-1], open_toy))
