"""`enginewright serve` over an executor that computes nothing; run as a module."""

from __future__ import annotations

import functools
import http.client
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enginewright.executor.client import ExecutorClient

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, str(Path(__file__).with_name("stub_executor.py")))


@contextmanager
def stub_server(folder: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Start a server whose engine folder has a tokenizer alone; yields its process id and port."""
    command = [sys.executable, "-m", "tests.benchmarks.stub_server", "serve", str(folder)]
    process = subprocess.Popen(
        [*command, "--port", "0", *options], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:([0-9]+)", process.stdout.readline())
        assert found, "the server did not start"
        yield process.pid, int(found.group(1))
    finally:
        process.terminate()
        process.communicate()


def get(port: int, path: str) -> bytes:
    """Return the body of a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


if __name__ == "__main__":
    from enginewright.serve.cli import main

    ExecutorClient.start = functools.partial(ExecutorClient.start, command=COMMAND)  # type: ignore[method-assign]
    main(sys.argv[1:])
