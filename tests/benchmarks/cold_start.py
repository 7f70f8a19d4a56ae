"""Cold start: seconds from the start of `enginewright serve` to the first answer.

    python -m tests.benchmarks.cold_start ENGINE [--rounds N]

Prints medians: until /health says 200, until the first completion of one token has arrived, and how
long the engine itself took to open (it is mapped), as `/version` and the log report it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from enginewright.runtime.artifact import open_engine
from enginewright.runtime.session import open_session

from ..e2e.conftest import start_server, stop_server


def first_answer(engine: Path) -> tuple[float, float]:
    """Start a server; return seconds until it is healthy and until it has answered."""
    begin = time.monotonic()
    server = start_server(engine)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        body = json.dumps({"prompt": "Hello", "max_tokens": 1, "temperature": 0})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        reply.read()
        return server.ready_seconds, time.monotonic() - begin
    finally:
        connection.close()
        stop_server(server)


def open_seconds(engine: Path) -> float:
    """Return the seconds that opening the engine takes once everything is imported."""
    begin = time.perf_counter()
    session = open_session(open_engine(engine))
    seconds = time.perf_counter() - begin
    session.close()
    return seconds


def interpreter_seconds() -> float:
    """Return the seconds that an empty Python program takes, as a measure of the machine."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = [first_answer(options.engine) for _ in range(options.rounds)]
    opened = [open_seconds(options.engine) for _ in range(options.rounds)]
    empty = [interpreter_seconds() for _ in range(options.rounds)]
    for name, values in (
        ("healthy", [healthy for healthy, _ in rounds]),
        ("first answer", [answer for _, answer in rounds]),
        ("engine open", opened),
        ("an empty python", empty),
    ):
        print(f"{name:16s} median {statistics.median(values):.3f} s  (least {min(values):.3f})")


if __name__ == "__main__":
    main()
