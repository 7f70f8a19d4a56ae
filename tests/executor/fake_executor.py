"""An executor process over a fake session: `python fake_executor.py MODE OPTIONS`."""

import os
import sys
import time
from pathlib import Path

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, run
from enginewright.runtime.errors import IncompatibleMachineError
from enginewright.runtime.session import Batch, SessionLimits, StepResult
from tests.support.fake_session import FakeSession


class SlowSession(FakeSession):
    """Takes a while for a step, so that requests are in flight when something happens."""

    def launch(self, batch: Batch) -> None:
        time.sleep(0.01)
        super().launch(batch)


class HungSession(FakeSession):
    """Never comes back from its third step."""

    def wait(self) -> StepResult:
        if len(self.batches) == 3:
            time.sleep(3600)
        return super().wait()


class FailingSession(FakeSession):
    """Fails a step now and then, in each of its verbs."""

    def launch(self, batch: Batch) -> None:
        time.sleep(0.001)
        count = len(self.batches)
        if count % 150 == 149 and self.fail_next is None:
            self.batches.append(batch)
            self.fail_next = ("launch", "sample", "wait")[count // 150 % 3]
        super().launch(batch)


def open_fake(folder: Path, config: ExecutorConfig) -> OpenedEngine:
    mode = sys.argv[1]
    if mode == "refuse":
        raise IncompatibleMachineError("this machine lacks avx512_vnni")
    if mode == "bug":
        raise KeyError("oops")
    if mode == "die":
        os._exit(3)
    num_blocks = 30 if mode == "soak" else 400
    limits = SessionLimits(
        config.max_batch_size or 4, config.max_num_tokens or 16, 4096, num_blocks, 32, 101
    )
    kinds = {"slow": SlowSession, "hang": HungSession, "soak": FailingSession}
    session = kinds.get(mode, FakeSession)(limits)
    return OpenedEngine(session, {"name": folder.name})


if __name__ == "__main__":
    sys.exit(run(sys.argv[-1], open_fake))
