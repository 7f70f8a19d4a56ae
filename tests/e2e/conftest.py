"""The real model, built by the product's own command, and served by it.

What is about an engine that runs, and not about one model or one target, runs twice: `engine` and
`served` are SmolLM2 on the CPU, and a tiny GPU engine on a machine whose GPU is the host
(tests.support.gpu_machine), whose sums may differ in their last bits from step to step.
"""

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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from enginewright.runtime.artifact import read_manifest
from tests.support.gpu_engine import GpuSpec, export_engine
from tests.support.gpu_machine import gpu_machine

ROOT = Path(__file__).resolve().parents[2]
# Another checkpoint, and options for every build: test_sanitizers.py runs these tests so.
OTHER = os.environ.get("ENGINEWRIGHT_TEST_CHECKPOINT")
BUILD_OPTIONS = os.environ.get("ENGINEWRIGHT_TEST_BUILD", "").split()
CHECKPOINT = (
    Path(OTHER) if OTHER else ROOT / ".cache/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
)
CACHE = CHECKPOINT.parent / "test-engines" if OTHER else ROOT / ".cache/test-engines"
SOURCES = ("builder", "converters", "plugins", "runtime")
MODEL = "smollm2-int8"
"""The name that both engines are served under: that of SmolLM2's folder."""

TINY = GpuSpec(
    max_batch_size=32,
    max_num_tokens=512,
    max_seq_len=8192,
    changes=(
        ("vocab_size", 49152),
        ("max_position_embeddings", 8192),
        ("num_layers", 2),
        ("tie_word_embeddings", False),
    ),
)
"""A random model with SmolLM2's vocabulary and length, and steps of a few milliseconds."""


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


@pytest.fixture(scope="session")
def gpu_engine(smollm2_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny engine for GPUs with SmolLM2's tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("gpu") / "tiny-f32"
    return export_engine(TINY, folder, smollm2_engine / "tokenizer").folder


@pytest.fixture(scope="session", params=["smollm2_engine", "gpu_engine"], ids=["cpu", "gpu"])
def engine_folder(request: pytest.FixtureRequest) -> Path:
    """An engine of each kind."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def engine(engine_folder: Path) -> Iterator[Path]:
    """An engine of each kind, on a machine that can run it."""
    with machine_of(engine_folder):
        yield engine_folder


def for_gpus(engine: Path) -> bool:
    """Whether an engine is one for GPUs: bits are promised on the CPU alone."""
    return read_manifest(engine).target.tensorrt is not None


def rounding(engine: Path) -> float:
    """Return how far log-probabilities may be from those of another step; 0: the same bits."""
    return 1e-4 if for_gpus(engine) else 0.0


def machine_of(engine: Path) -> AbstractContextManager[None]:
    """Return the machine that an engine runs on."""
    return gpu_machine() if for_gpus(engine) else nullcontext()


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs, and where."""

    url: str
    port: int
    process: subprocess.Popen[str]
    engine: Path
    ready_seconds: float  # from process start to the first 200 of /health

    def must_know(self, what: str) -> None:
        """Skip a test of an answer that only a model gives which has learned something."""
        if for_gpus(self.engine):
            pytest.skip(f"the model of the GPU engine is random: {what}")


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
def served_on_cpu(smollm2_engine: Path) -> Iterator[Served]:
    """The int8 engine, served by the product's own command; ends with exit code 0."""
    server = start_server(smollm2_engine, "--max-batch-size", "32")
    yield server
    assert stop_server(server) == 0


@pytest.fixture(scope="session")
def served_on_gpu(gpu_engine: Path) -> Iterator[Served]:
    """The tiny GPU engine, served by the same command."""
    with gpu_machine():
        server = start_server(gpu_engine, "--max-batch-size", "32", "--served-model-name", MODEL)
    yield server
    assert stop_server(server) == 0


@pytest.fixture(scope="session", params=["cpu", "gpu"])
def served(request: pytest.FixtureRequest) -> Served:
    """A server of each kind."""
    return request.getfixturevalue(f"served_on_{request.param}")
