"""The real model, built by the product's own command, and served by it."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Another checkpoint, and options for every build: test_sanitizers.py runs these tests so.
OTHER = os.environ.get("ENGINEWRIGHT_TEST_CHECKPOINT")
BUILD_OPTIONS = os.environ.get("ENGINEWRIGHT_TEST_BUILD", "").split()
CHECKPOINT = (
    Path(OTHER) if OTHER else ROOT / ".cache/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
)
CACHE = CHECKPOINT.parent / "test-engines" if OTHER else ROOT / ".cache/test-engines"
SOURCES = ("builder", "converters", "plugins", "runtime")


def _source_hash() -> str:
    """Hash what decides an engine's bytes, so that a change builds the test engines anew."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.[pch]*")):
            if path.suffix in (".py", ".h", ".c"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def build_engine(format: str, *options: str) -> Path:
    """Build SmolLM2 with `enginewright build`, or return the engine of an earlier run."""
    name = "-".join((f"smollm2-{format}", *(option.strip("-") for option in options)))
    output = CACHE / _source_hash() / name
    with _locked():
        if not output.exists():
            for old in CACHE.glob("*"):
                if old.is_dir() and old.name != _source_hash():
                    shutil.rmtree(old, ignore_errors=True)
            command = [sys.executable, "-m", "enginewright", "build", str(CHECKPOINT)]
            command += ["-o", str(output), "--quant", format, *options, *BUILD_OPTIONS]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
            assert done.returncode == 0, done.stderr
    return output


@contextmanager
def _locked() -> Iterator[None]:
    """Let one run of the tests build at a time; a second one finds the engine when it may go on.

    A build renames the engine into place when all of it is there, so that nobody sees a part.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The GGUF file that scripts/model fetches."""
    assert CHECKPOINT.exists(), "scripts/model fetches the checkpoint; scripts/test runs it first"
    return CHECKPOINT


@pytest.fixture(scope="session")
def smollm2_engine(checkpoint: Path) -> Path:
    """SmolLM2-135M in int8, the default build."""
    return build_engine("int8")


@pytest.fixture(scope="session")
def smollm2_int4_engine(checkpoint: Path) -> Path:
    """SmolLM2-135M in int4, with an int8 head."""
    return build_engine("int4")


@pytest.fixture(scope="session")
def smollm2_f32_engine(checkpoint: Path) -> Path:
    """SmolLM2-135M in f32."""
    return build_engine("f32")


@pytest.fixture(scope="session")
def smollm2_embed_engine(checkpoint: Path) -> Path:
    """SmolLM2-135M in f32, giving the mean of a text's hidden states."""
    return build_engine("f32", "--task=embed", "--pooling=mean")


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs, and where."""

    url: str
    port: int
    process: subprocess.Popen[str]
    engine: Path
    ready_seconds: float  # from process start to the first 200 of /health


def start_server(engine: Path, *options: str) -> Served:
    """Start `enginewright serve` on a free port and wait until it is healthy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    begin = time.monotonic()
    command = [sys.executable, "-m", "enginewright", "serve", str(engine), "--port", str(port)]
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would fill up
        process = subprocess.Popen(
            [*command, *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        while time.monotonic() - begin < 60:
            if process.poll() is not None:
                break
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    seconds = time.monotonic() - begin
                    return Served(f"http://127.0.0.1:{port}", port, process, engine, seconds)
            except OSError:
                time.sleep(0.02)
            finally:
                connection.close()
        process.kill()
        process.wait()
        log.seek(0)
        raise AssertionError(f"the server did not start: {log.read()}")


def stop_server(served: Served) -> int:
    """End a server as an operator would; returns its exit code."""
    served.process.send_signal(signal.SIGTERM)
    try:
        served.process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        served.process.kill()
        served.process.communicate()
    return served.process.returncode


@pytest.fixture(scope="session")
def served(smollm2_engine: Path) -> Iterator[Served]:
    """The int8 engine, served by the product's own command; ends with exit code 0."""
    server = start_server(smollm2_engine, "--max-batch-size", "32")
    yield server
    assert stop_server(server) == 0
