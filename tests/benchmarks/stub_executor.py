"""An executor process that computes nothing: each token is the last one plus one, at a steady pace.

Run as a script by stub_server.py; ENGINEWRIGHT_STUB_STEP_MS says how long a step takes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, run
from enginewright.runtime.session import SessionLimits
from tests.support.counting_session import CountingSession

VOCAB_SIZE = 1024
STREAMS = 256


def open_stub(folder: Path, config: ExecutorConfig) -> OpenedEngine:
    """Open a session that takes 256 sequences a step."""
    limits = SessionLimits(
        max_batch_size=STREAMS,
        max_num_tokens=8192,
        max_seq_len=2048,
        num_blocks=STREAMS * 64,
        block_tokens=32,
        vocab_size=VOCAB_SIZE,
    )
    seconds = float(os.environ.get("ENGINEWRIGHT_STUB_STEP_MS", "5")) / 1e3
    return OpenedEngine(CountingSession(limits, seconds), {"name": "stub"})


if __name__ == "__main__":
    sys.exit(run(sys.argv[-1], open_stub))
