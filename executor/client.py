"""The client's side of an executor process: start it, submit, receive, abort, end it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..runtime.errors import ExecutorDiedError, RequestError
from .config import ExecutorConfig
from .messages import (
    Abort,
    Command,
    ErrorInfo,
    ExecutorInfo,
    Failed,
    GetStats,
    Ready,
    Reply,
    Shutdown,
    StatsReply,
    StepOutputs,
    TokenOutput,
    checked_submit,
    error_info,
    to_exception,
)
from .sampling import TokenParams
from .transport import ZmqChannel, client_channel
from .watchdog import EXIT_HUNG

Sink = Callable[[TokenOutput], None]

_COMMAND = (sys.executable, "-m", "enginewright.executor.main")
_DRAIN_SECONDS = 0.1  # for replies that the process sent just before it ended


class ExecutorClient:
    """Talks to one executor process; methods may be called from any thread.

    A sink is called on the client's own thread and must be quick. Each request gets exactly one
    output that has a finish reason, also when the process dies.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: ZmqChannel[Reply, Command],
        death_fd: int,
        folder: Path,
    ) -> None:
        """Take over a process that was just started; `start` is the way to make a client."""
        self._process = process
        self._channel = channel
        self._death_fd = death_fd
        self._lock = threading.Lock()  # over the sending socket and all below
        self._sinks: dict[str, Sink] = {}
        self._stats_waiting: deque[Future[dict[str, Any]]] = deque()
        self._dead = False
        self._closed = False
        self._cleanup = weakref.finalize(self, _clean_up, process, folder)
        try:
            self.info = self._wait_until_ready()
            channel.connect(folder)
        except BaseException:
            self._release()
            raise
        self._reader = threading.Thread(target=self._read, name="executor client", daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        engine: str | os.PathLike[str],
        config: ExecutorConfig | None = None,
        command: Sequence[str] = _COMMAND,
    ) -> ExecutorClient:
        """Start a process that opens the engine, and wait until it is ready.

        `command` runs the process; its options are appended. Raises the error that opening the
        engine raised, or ExecutorDiedError.
        """
        folder = Path(tempfile.mkdtemp(prefix="ew-"))
        death_fd, child_fd = os.pipe()
        try:
            channel = client_channel(folder, death_fd)
            options = {
                "engine": os.fspath(engine),
                "channel": str(folder),
                "config": config or ExecutorConfig(),
            }
            process = subprocess.Popen(
                [*command, msgspec.json.encode(options).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(child_fd,),  # closes when the process ends, however it ends
            )
        except BaseException:
            os.close(death_fd)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(child_fd)
        return cls(process, channel, death_fd, folder)

    @property
    def pid(self) -> int:
        """The process id of the executor."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the executor process lives."""
        return not self._dead and self._process.poll() is None

    def submit(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: TokenParams,
        sink: Sink,
    ) -> None:
        """Start a request; `sink` gets its outputs.

        Raises RequestError if the id is in use or a value has the wrong type, ExecutorDiedError if
        there is no process any more. What the executor itself refuses comes as an output.
        """
        message = checked_submit(request_id, prompt_token_ids, params, time.monotonic())
        with self._lock:
            if self._dead:
                raise _died(self._process)
            if request_id in self._sinks:
                message = f"Request id {request_id!r} is in use; choose another."
                raise RequestError(message, "request_id")
            try:
                self._channel.send(message)
            except OverflowError:
                raise RequestError("The prompt holds a number of more than 64 bits.") from None
            self._sinks[request_id] = sink

    def abort(self, request_id: str) -> None:
        """End a request; one that is unknown or has ended is left alone."""
        with self._lock:
            if request_id in self._sinks and not self._dead:
                self._channel.send(Abort(request_id))

    def stats(self, detail: bool = False) -> dict[str, Any]:
        """Return the executor's counters and gauges; waits for the step in progress.

        With `detail` there are also `iterations` and `ended_requests`, each since they were last
        asked for, and `requests`. Raises ExecutorDiedError.
        """
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._dead:
                raise _died(self._process)
            self._stats_waiting.append(future)
            self._channel.send(GetStats(detail))
        return future.result()

    def shutdown(self, timeout: float = 10.0) -> None:
        """Cancel what runs and end the process; after `timeout` seconds it is killed.

        May be called again, but not by a sink.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._dead:
                self._channel.send(Shutdown())
        self._reader.join(timeout)
        if self._reader.is_alive():
            self._process.kill()
            self._reader.join()
        self._release()

    def __enter__(self) -> ExecutorClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _wait_until_ready(self) -> ExecutorInfo:
        replies = self._channel.receive(None) or self._channel.drain(_DRAIN_SECONDS)
        if not replies:
            raise _died(self._process)
        reply = replies[0]
        if isinstance(reply, Failed):
            raise to_exception(reply.error)
        assert isinstance(reply, Ready)
        return reply.info

    def _read(self) -> None:
        """Hand out replies until the process has ended; then end what is left."""
        while replies := self._channel.receive(None):
            self._hand_out(replies)
        while replies := self._channel.drain(_DRAIN_SECONDS):
            self._hand_out(replies)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DRAIN_SECONDS)  # for its exit code
        with self._lock:
            self._dead = True
            sinks, self._sinks = self._sinks, {}
            waiting, self._stats_waiting = self._stats_waiting, deque()
        error = _died(self._process)
        for future in waiting:
            future.set_exception(error)
        info: ErrorInfo = error_info(error)
        for request_id, sink in sinks.items():
            _call(sink, TokenOutput(request_id, finish_reason="error", error=info))

    def _hand_out(self, replies: list[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, StepOutputs):
                for output in reply.outputs:
                    with self._lock:
                        ended = output.finish_reason is not None
                        take = self._sinks.pop if ended else self._sinks.get
                        sink = take(output.request_id, None)
                    if sink is not None:
                        _call(sink, output)
            elif isinstance(reply, StatsReply):
                with self._lock:
                    future = self._stats_waiting.popleft()
                future.set_result(reply.stats)

    def _release(self) -> None:
        self._cleanup()
        self._channel.close()
        os.close(self._death_fd)


def _call(sink: Sink, output: TokenOutput) -> None:
    try:
        sink(output)
    except Exception:  # a bug of one sink must not silence the others
        traceback.print_exc()


def _died(process: subprocess.Popen[bytes]) -> ExecutorDiedError:
    code = process.poll()
    if code == EXIT_HUNG:
        return ExecutorDiedError(
            "A step took longer than --step-timeout, so the executor process has ended; the stacks "
            "of its threads are on standard error. Start it again."
        )
    ending = (
        "" if code is None else f" with exit code {code}" if code >= 0 else f" of signal {-code}"
    )
    return ExecutorDiedError(
        f"The executor process has ended{ending}; its own messages are on standard error. "
        "Start it again."
    )


def _clean_up(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End the process if it lives, and remove the folder of the sockets."""
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
