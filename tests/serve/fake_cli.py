"""`enginewright` over a fake executor: run as `python -m tests.serve.fake_cli`."""

from __future__ import annotations

import sys
from pathlib import Path

from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.sampling import TokenParams
from enginewright.runtime.errors import EngineError
from enginewright.serve.cli import main
from enginewright.serve.tokenizer import Tokenizer

from .conftest import ANSWER
from .fake_client import FakeClient


def start(engine: Path, config: ExecutorConfig) -> FakeClient:
    if not engine.is_dir():
        raise EngineError(f"{engine} is not an engine folder")
    tokenizer = Tokenizer(engine / "tokenizer")

    def reply(prompt: list[int], params: TokenParams) -> list[int]:
        return [*tokenizer.encode(ANSWER), *params.eos_token_ids[:1]] * 40

    client = FakeClient(reply)
    client.step_seconds = 0.002 * (config.threads or 0)
    return client


ExecutorClient.start = staticmethod(start)  # type: ignore[assignment]
main(sys.argv[1:])
