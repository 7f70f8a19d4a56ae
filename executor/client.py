"""The client's side of an executor process: start it, submit, receive, abort, end it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from ..runtime.errors import RequestError
from .config import ExecutorConfig
from .fork_guard import ForkGuard
from .inbox import Inbox, Sink, died
from .messages import (
    Abort,
    Command,
    ExecutorInfo,
    Failed,
    GetStats,
    Ready,
    Reply,
    Shutdown,
    checked_submit,
    to_exception,
)
from .sampling import TokenParams
from .transport import SocketChannel, client_channel

_COMMAND = (sys.executable, "-m", "enginewright.executor.main")


class ExecutorClient:
    """Talks to one executor process; methods may be called from any thread.

    A sink is called on the client's own thread and must be quick. Each request gets exactly one
    output that has a finish reason, also when the process dies. A client that is forgotten ends its
    process, unless a sink still knows it. A fork cannot use it (ForkedProcessError), nor end it.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: SocketChannel[Reply, Command],
    ) -> None:
        """Take over a process that was just started; `start` is the way to make a client."""
        self._process = process
        self._channel = channel
        self._guard = ForkGuard()
        self._closed = False
        self._cleanup = weakref.finalize(self, _clean_up, process)
        os.register_at_fork(after_in_child=partial(_disown, weakref.ref(self)))
        try:
            self.info = self._wait_until_ready()
        except BaseException:
            self._cleanup()
            channel.close()
            raise
        self._inbox = Inbox(process, channel)

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
        ours, theirs = socket.socketpair()
        with theirs:
            options = {
                "engine": os.fspath(engine),
                "channel": theirs.fileno(),
                "config": config or ExecutorConfig(),
            }
            try:
                process = subprocess.Popen(
                    [*command, msgspec.json.encode(options).decode()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),  # closes when the process ends, however it ends
                )
            except BaseException:
                ours.close()
                raise
        return cls(process, client_channel(ours))

    @property
    def pid(self) -> int:
        """The process id of the executor."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the executor process lives."""
        return not self._inbox.dead and self._process.poll() is None

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
        self._guard.check()
        message = checked_submit(request_id, prompt_token_ids, params, time.monotonic())
        with self._inbox.lock:
            if self._inbox.dead:
                raise died(self._process)
            if request_id in self._inbox.sinks:
                message = f"Request id {request_id!r} is in use; choose another."
                raise RequestError(message, "request_id")
            try:
                self._channel.send(message)
            except OverflowError:
                raise RequestError("The prompt holds a number of more than 64 bits.") from None
            self._inbox.sinks[request_id] = sink

    def abort(self, request_id: str) -> None:
        """End a request; one that is unknown or has ended is left alone."""
        self._guard.check()
        with self._inbox.lock:
            if request_id in self._inbox.sinks and not self._inbox.dead:
                self._channel.send(Abort(request_id))

    def stats(self, detail: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """Return the executor's counters and gauges; waits for the step in progress.

        With `detail` there are also `iterations` and `ended_requests`, each since they were last
        asked for, and `requests`. Raises ExecutorDiedError; TimeoutError after `timeout` seconds.
        """
        self._guard.check()
        future: Future[dict[str, Any]] = Future()
        with self._inbox.lock:
            if self._inbox.dead:
                raise died(self._process)
            self._inbox.stats_waiting.append(future)
            self._channel.send(GetStats(detail))
        try:
            return future.result(timeout)
        except TimeoutError:  # the answer may still come, and must not be taken for another's
            message = f"the executor has not answered for {timeout:g} s; a step takes long or hangs"
            raise TimeoutError(message) from None

    def shutdown(self, timeout: float = 10.0) -> None:
        """Cancel what runs and end the process; after `timeout` seconds it is killed.

        May be called again, but not by a sink. In a fork it does nothing.
        """
        if self._guard.inherited:
            return
        with self._inbox.lock:
            if self._closed:
                return
            self._closed = True
            if not self._inbox.dead:
                self._channel.send(Shutdown())
        if not self._inbox.join(timeout):
            self._process.kill()
            self._inbox.join()
        self._cleanup()

    def __enter__(self) -> ExecutorClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _wait_until_ready(self) -> ExecutorInfo:
        replies = self._channel.receive(None)
        if not replies:
            raise died(self._process)
        reply = replies[0]
        if isinstance(reply, Failed):
            raise to_exception(reply.error)
        assert isinstance(reply, Ready)
        return reply.info

    def _leave_to_parent(self) -> None:
        """In a fork: let go of what keeps the process alive, and of the duty to end it."""
        self._cleanup.detach()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.poll()  # it is not this process's child, which ends the matter for Popen


def _disown(reference: weakref.ref[ExecutorClient]) -> None:
    client = reference()
    if client is not None:
        client._leave_to_parent()  # pyright: ignore[reportPrivateUsage]


def _clean_up(process: subprocess.Popen[bytes]) -> None:
    """End the process if it lives."""
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
