"""An executor process over a fake session: `python fake_executor.py MODE OPTIONS`."""

import os
import sys
import time
from pathlib import Path

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, run
from enginewright.runtime.errors import IncompatibleMachineError
from enginewright.runtime.session import Batch, SessionLimits
from tests.support.fake_session import FakeSession


class SlowSession(FakeSession):
    """Takes a while for a step, so that requests are in flight when something happens."""

    def launch(self, batch: Batch) -> None:
        time.sleep(0.01)
        super().launch(batch)


def open_fake(folder: Path, config: ExecutorConfig) -> OpenedEngine:
    mode = sys.argv[1]
    if mode == "refuse":
        raise IncompatibleMachineError("this machine lacks avx512_vnni")
    if mode == "bug":
        raise KeyError("oops")
    if mode == "die":
        os._exit(3)
    limits = SessionLimits(
        config.max_batch_size or 4, config.max_num_tokens or 16, 4096, 400, 32, 101
    )
    session = SlowSession(limits) if mode == "slow" else FakeSession(limits)
    return OpenedEngine(session, {"name": folder.name})


if __name__ == "__main__":
    sys.exit(run(sys.argv[-1], open_fake))
