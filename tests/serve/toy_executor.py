"""An executor process over a session that counts, run as a script."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, run
from enginewright.runtime.session import SessionLimits
from tests.support.counting_session import CountingSession

VOCAB_SIZE = 300
STEP_SECONDS = 0.002


def open_toy(folder: Path, config: ExecutorConfig) -> OpenedEngine:
    limits = SessionLimits(
        max_batch_size=4,
        max_num_tokens=64,
        max_seq_len=512,
        num_blocks=64,
        block_tokens=32,
        vocab_size=VOCAB_SIZE,
    )
    return OpenedEngine(CountingSession(limits, STEP_SECONDS), {"name": "toy"})


if __name__ == "__main__":
    sys.exit(run(sys.argv[-1], open_toy))
