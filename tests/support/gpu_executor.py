"""An executor process over a GPU engine's exported graph, run as a script."""

from __future__ import annotations

import sys
from pathlib import Path

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.main import OpenedEngine, run
from enginewright.runtime.artifact import open_engine
from tests.support.gpu_engine import open_stand_in

COMMAND = (sys.executable, "-m", "tests.support.gpu_executor")


def open_graph(folder: Path, config: ExecutorConfig) -> OpenedEngine:
    session = open_stand_in(open_engine(folder))
    return OpenedEngine(session, {"name": folder.name}, folder / "tokenizer")


if __name__ == "__main__":
    sys.exit(run(sys.argv[-1], open_graph))
