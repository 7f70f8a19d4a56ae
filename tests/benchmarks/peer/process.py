"""Processes of peers: workers spoken to by lines, servers, and who used the processor."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .models import CACHE, ROOT

WORKERS = Path(__file__).parent / "workers"
LOGS = CACHE / "peers" / "logs"
READY_SECONDS = 600.0
STOP_SECONDS = 15.0
_MARK = "@@"
_PAUSE = 0.4  # seconds, for threads of the last peer that still spin

T = TypeVar("T")


class ProcessError(Exception):
    """A process of a peer ended, hung or answered with an error."""


class Running:
    """A child process; its pid is noted in pids.txt, and it is ended by that pid alone."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], **pipes: Any) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = LOGS / f"{name.replace(' ', '_')}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **env}, stderr=log, text=True, **pipes
            )
        with (LOGS / "pids.txt").open("a") as pids:
            pids.write(f"{self.process.pid} {time.strftime('%F %T')} {' '.join(command)[:200]}\n")

    def close(self) -> None:
        """Ask the process to end, then end it; and what it started, if that is still there."""
        family = family_of(self.process.pid)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid, started in family.items():
            if pid != self.process.pid and family_of(pid).get(pid) == started:
                os.kill(pid, 9)

    def last_words(self) -> str:
        """Return the end of what it wrote to standard error."""
        return " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:])[-400:]


class Worker(Running):
    """A worker module in a peer's environment: one JSON line a call, one a result."""

    def __init__(
        self, python: Path, module: str, arguments: dict[str, Any], env: dict[str, str]
    ) -> None:
        command = [str(python), str(WORKERS / "worker_loop.py"), module, json.dumps(arguments)]
        name = f"{module} {arguments.get('format', '')} {arguments.get('mode', '')}".strip()
        super().__init__(name, command, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._answer(READY_SECONDS)
        except ProcessError:
            self.close()
            raise

    def call(self, name: str, *, seconds: float = 300.0, **arguments: Any) -> Any:
        """Call a method of the worker and return what it returns; raises ProcessError."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise ProcessError(f"{self.name} has ended: {self.last_words()}") from None
        return self._answer(seconds)

    def _answer(self, seconds: float) -> Any:
        """Return the next marked line; one is all that is ever under way."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        if not ready:
            self.process.kill()
            raise ProcessError(f"{self.name} did not answer within {seconds:.0f} s")
        line = self.process.stdout.readline()
        if not line.startswith(_MARK):
            raise ProcessError(f"{self.name} has ended: {self.last_words()}")
        answer = json.loads(line[len(_MARK) :])
        if "error" in answer:
            raise ProcessError(f"{self.name}: {answer['error']}"[:600])
        return answer["result"]


class Server(Running):
    """An HTTP server on a free port of the loopback interface."""

    def __init__(self, name: str, command: list[str], port: int, env: dict[str, str]) -> None:
        super().__init__(f"{name} server", command, env, stdout=subprocess.DEVNULL)
        self.port = port
        self.model = ""

    @staticmethod
    def free_port() -> int:
        """Return a port that nothing listens on."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def wait_until_ready(self) -> None:
        """Wait until it names its models; raises ProcessError."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise ProcessError(f"{self.name} has ended: {self.last_words()}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/v1/models")
                answer = connection.getresponse()
                body = answer.read()
                connection.close()
                if answer.status == 200:
                    models = json.loads(body).get("data") or [{}]
                    self.model = models[0].get("id") or self.model
                    return
            except (OSError, http.client.HTTPException, ValueError):
                pass
            time.sleep(0.25)
        self.close()
        raise ProcessError(f"{self.name} did not answer within {READY_SECONDS:.0f} s")


def family_of(pid: int) -> dict[int, int]:
    """Return pid -> start time of a process and all that descends from it, as far as alive."""
    found = {pid: int(stat[19]) for pid, stat in _family(pid)}
    return found


def _family(root: int) -> list[tuple[int, list[str]]]:
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    text = file.read()
            except OSError:
                continue  # ended meanwhile
            stats[int(entry)] = fields = text[text.rindex(")") + 2 :].split()
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[tuple[int, list[str]]] = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in stats:
            found.append((pid, stats[pid]))
        waiting += children.get(pid, ())
    return found


class ForeignLoad:
    """Cores that processes outside our own family used while it was open."""

    def __enter__(self) -> ForeignLoad:
        self._begin = (*self._used(), time.perf_counter())
        self.cores = 0.0
        return self

    def __exit__(self, *error: object) -> None:
        busy, own = self._used()
        seconds = time.perf_counter() - self._begin[2]
        foreign = (busy - self._begin[0]) - (own - self._begin[1])
        self.cores = max(0.0, foreign / max(seconds, 0.01))

    @staticmethod
    def _used() -> tuple[float, float]:
        """Return busy seconds of the machine, and of this process and its descendants."""
        ticks = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat") as file:
            numbers = [int(x) for x in file.readline().split()[1:9]]
        busy = sum(numbers) - numbers[3] - numbers[4]  # all but idle and waiting for disks
        own = sum(sum(int(x) for x in stat[11:15]) for _, stat in _family(os.getpid()))
        return busy / ticks, own / ticks


class Patience:
    """Measures again while others use the processor; keeps the try with the least foreign load.

    All repeats together take at most `seconds`, and one measurement has at most `tries`.
    """

    def __init__(self, seconds: float, tries: int = 4, quiet_cores: float = 0.15) -> None:
        self._left, self._tries, self._quiet = seconds, tries, quiet_cores

    def measure(self, run: Callable[[], T]) -> tuple[T, float]:
        """Return what the cleanest run returned, and the foreign cores during it."""
        best: tuple[T, float] | None = None
        for _ in range(self._tries):
            time.sleep(_PAUSE)
            begin = time.perf_counter()
            with ForeignLoad() as foreign:
                value = run()
            if best is None or foreign.cores < best[1]:
                best = (value, foreign.cores)
            if best[1] <= self._quiet or self._left <= 0:
                break
            self._left -= time.perf_counter() - begin + _PAUSE
        assert best is not None
        return best


def claim_processor(nice: int) -> None:
    """Run this process and its children in a session of their own with a higher share.

    On a machine shared with others: the scheduler groups tasks by session, so that a process's
    own nice value says nothing to other sessions. Needs the right to lower a nice value.
    """
    if os.getsid(0) != os.getpid():
        command = [sys.executable, *sys.orig_argv[1:]]
        child = subprocess.Popen(command, start_new_session=True)
        while True:
            try:
                sys.exit(child.wait())
            except KeyboardInterrupt:
                child.send_signal(signal.SIGINT)  # it ends its servers, then itself
    Path("/proc/self/autogroup").write_text(str(nice))
