"""An executor process over a fake session: `python fake_executor.py MODE OPTIONS`."""

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, open_engine_session, run
from enginewright.runtime.errors import IncompatibleMachineError
from enginewright.runtime.session import Batch, Sampling, Session, SessionLimits, StepResult
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


class FaultySession:
    """A real session, of which a call fails now and then, in each of its verbs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._steps = 0
        self._fails: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def launch(self, batch: Batch) -> None:
        self._steps += 1
        if self._steps % 200 == 0:
            self._fails = ("launch", "sample", "wait")[self._steps // 200 % 3]
        self._maybe_fail("launch")
        self._session.launch(batch)

    def sample(self, sampling: Sampling | None) -> None:
        self._maybe_fail("sample")
        self._session.sample(sampling)

    def wait(self) -> StepResult:
        result = self._session.wait()
        self._maybe_fail("wait")
        return result

    def _maybe_fail(self, verb: str) -> None:
        if self._fails == verb:
            self._fails = None
            raise RuntimeError(f"{verb} was told to fail")


def open_faulty(folder: Path, config: ExecutorConfig) -> OpenedEngine:
    opened = open_engine_session(folder, config)
    session: Any = FaultySession(opened.session)
    return dataclasses.replace(opened, session=session)


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
    sys.exit(run(sys.argv[-1], open_faulty if sys.argv[1] == "faulty" else open_fake))
