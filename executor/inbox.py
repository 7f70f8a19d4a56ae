"""What comes back from an executor process: replies, handed out on a thread of their own."""

from __future__ import annotations

import subprocess
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ..runtime.errors import ExecutorDiedError
from .messages import Command, ErrorInfo, Reply, StatsReply, StepOutputs, TokenOutput, error_info
from .transport import SocketChannel
from .watchdog import EXIT_HUNG

Sink = Callable[[TokenOutput], None]

_ENDING_SECONDS = 0.1  # from the end of its replies to that of the process


class Inbox:
    """Hands out replies until the process has ended, then ends what is left and the channel.

    It does not know the client: one that is forgotten can go away while this thread waits.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: SocketChannel[Reply, Command],
    ) -> None:
        self.lock = threading.Lock()  # over all below
        self.sinks: dict[str, Sink] = {}
        self.stats_waiting: deque[Future[dict[str, Any]]] = deque()
        self.dead = False  # once it is true the channel may be closed
        self._process = process
        self._channel = channel
        self._thread = threading.Thread(target=self._read, name="executor client", daemon=True)
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of it all; False if it has not come in `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _read(self) -> None:
        while replies := self._channel.receive(None):
            self._hand_out(replies)
        error = died(self._process)
        with self.lock:
            self.dead = True
            sinks, self.sinks = self.sinks, {}
            waiting, self.stats_waiting = self.stats_waiting, deque()
        for future in waiting:
            future.set_exception(error)
        info: ErrorInfo = error_info(error)
        for request_id, sink in sinks.items():
            _call(sink, TokenOutput(request_id, finish_reason="error", error=info))
        self._channel.close()

    def _hand_out(self, replies: list[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, StepOutputs):
                with self.lock:
                    sinks = [self._sink_of(output) for output in reply.outputs]
                for sink, output in zip(sinks, reply.outputs, strict=True):
                    if sink is not None:
                        _call(sink, output)
            elif isinstance(reply, StatsReply):
                with self.lock:
                    future = self.stats_waiting.popleft()
                future.set_result(reply.stats)

    def _sink_of(self, output: TokenOutput) -> Sink | None:
        """Return who takes an output, if anybody does; the last one of a request is the last."""
        if output.finish_reason is not None:
            return self.sinks.pop(output.request_id, None)
        return self.sinks.get(output.request_id)


def _call(sink: Sink, output: TokenOutput) -> None:
    try:
        sink(output)
    except Exception:  # a bug of one sink must not silence the others
        traceback.print_exc()


def died(process: subprocess.Popen[bytes]) -> ExecutorDiedError:
    """Return the error that says how a process has ended, or is about to."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING_SECONDS)
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
