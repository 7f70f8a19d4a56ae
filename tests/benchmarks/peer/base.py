"""What a peer is: its environment, its weights, its library and its server."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .models import CACHE, ROOT, Model
from .process import Server, Worker

PEERS = CACHE / "peers"
INSTALL_SECONDS = 5400.0  # llama.cpp is compiled from source


class PeerError(Exception):
    """A peer cannot be installed, converted for or run; the message says why."""


class Library(Protocol):
    """A peer's library with a model loaded. Random prompts; greedy; 2 threads."""

    def prefill(self, tokens: int) -> list[float]:
        """Return tokens/s of several prompts of that length, each alone."""
        ...

    def decode(self, sequences: int, context: int, new: int) -> float:
        """Return tokens/s of so many sequences at once, each `new` tokens after `context`."""
        ...

    def close(self) -> None:
        """End what `open` started."""
        ...


@dataclass(frozen=True, slots=True)
class Variant:
    """One peer in one format, by one of its paths where it has several."""

    peer: Peer
    format: str
    path: str = ""  # "session" or "executor" of enginewright, "ir" or "genai" of OpenVINO

    @property
    def name(self) -> str:
        """The name that tables show."""
        return " ".join(part for part in (self.peer.name, self.format, self.path) if part)


class Peer(ABC):
    """One engine; subclasses say how it is installed, fed and started."""

    name: str
    requirements: tuple[str, ...] = ()  # pinned; what pip installs into its environment
    formats: tuple[str, ...]
    quick_formats: tuple[str, ...] = ()
    paths: tuple[str, ...] = ("",)
    worker: str = ""  # the module in workers/ that runs in its environment
    http_note: str = "HTTP server"

    def __init__(self) -> None:
        self.folder = PEERS / re.sub("[.-]", "_", self.name.lower())
        self.model: Model | None = None

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.folder / "bin" / "python"

    @property
    def version(self) -> str:
        """What was installed, for tables."""
        return self.requirements[0] if self.requirements else ""

    def install(self) -> None:
        """Make the environment, or reuse one made of the same requirements; raises PeerError."""
        stamp = self.folder / ".requirements"
        wanted = hashlib.sha256("\n".join(self.requirements).encode()).hexdigest()
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        print(f"peers: installing {self.name} ({', '.join(self.requirements)})", file=sys.stderr)
        if not self.python.exists():
            run([sys.executable, "-m", "venv", str(self.folder)])
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-input"]
        run([*pip, *self.requirements], env=self.install_environment())
        self.after_install()
        stamp.write_text(wanted)

    def install_environment(self) -> dict[str, str]:
        """Return variables that its installation needs."""
        return {}

    def after_install(self) -> None:  # noqa: B027 - most need nothing
        """Repair what its packages leave undone."""

    @abstractmethod
    def weights(self, model: Model, fmt: str) -> Path:
        """Return the file or folder of a model in a format; made when missing."""
        ...

    def prepare(self, model: Model) -> None:
        """Choose the model of everything that follows."""
        self.model = model

    def path_of(self, fmt: str) -> Path:
        """Return the weights of the chosen model; raises PeerError."""
        assert self.model is not None
        return self.weights(self.model, fmt)

    def open(self, variant: Variant) -> Library:
        """Load the model in a process of the peer's environment; raises PeerError."""
        arguments = {
            "path": str(self.path_of(variant.format)),
            "format": variant.format,
            "mode": variant.path,
        }
        return WorkerLibrary(self.start_worker(arguments))

    def start_worker(self, arguments: dict[str, Any]) -> Worker:
        """Start its worker module in its environment."""
        return Worker(self.python, self.worker, arguments, self.environment())

    def logits(self, fmt: str, ids: list[int], output: Path) -> Path:
        """Write what it thinks of each next token of `ids`: logits (.npy) or the top ones (.npz).

        Raises PeerError.
        """
        worker = self.start_worker(
            {"path": str(self.path_of(fmt)), "format": fmt, "mode": "logits"}
        )
        try:
            return Path(worker.call("logits", ids=ids, output=str(output), seconds=900))
        finally:
            worker.close()

    def environment(self) -> dict[str, str]:
        """Return variables that its processes need."""
        return {"OMP_NUM_THREADS": "2"}

    def server_command(self, fmt: str, port: int) -> list[str] | None:
        """Return the command of its HTTP server; None when it has none."""
        return None

    def serve(self, fmt: str) -> Server | None:
        """Start its HTTP server and wait until it answers; raises PeerError."""
        assert self.model is not None
        port = Server.free_port()
        command = self.server_command(fmt, port)
        if command is None:
            return None
        server = Server(self.name, command, port, self.environment())
        server.wait_until_ready()
        return server


class WorkerLibrary:
    """A library that a worker process holds."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def prefill(self, tokens: int) -> list[float]:
        """Return tokens/s of several prompts."""
        return self.worker.call("prefill", tokens=tokens)

    def decode(self, sequences: int, context: int, new: int) -> float:
        """Return tokens/s over all sequences."""
        return self.worker.call("decode", sequences=sequences, context=context, new=new)

    def close(self) -> None:
        """End the process."""
        self.worker.close()


def run(
    command: list[str], env: dict[str, str] | None = None, seconds: float = INSTALL_SECONDS
) -> str:
    """Run a command to its end and return its output; raises PeerError with its last words."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{command[0]} did not end within {seconds:.0f} s") from error
    except OSError as error:
        raise PeerError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-4:]
        name = Path(command[0]).name
        raise PeerError(f"{name} ended with {done.returncode}: {' | '.join(last)}"[:600])
    return done.stdout
