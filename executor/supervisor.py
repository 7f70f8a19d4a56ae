"""A client that starts the executor again when its process has ended."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..runtime.errors import EnginewrightError
from .client import ExecutorClient, Sink
from .config import ExecutorConfig
from .messages import ExecutorInfo
from .sampling import TokenParams

_POLL_SECONDS = 0.2
_FIRST_DELAY = 0.5  # seconds before an attempt, doubled with every one that fails
_LONGEST_DELAY = 30.0
_HEALTHY_SECONDS = 60.0  # a process that lived so long begins with the first delay again

Starter = Callable[[], ExecutorClient]


class SupervisedClient:
    """Stands for one executor after the other; requests in flight at a death get an error.

    While none runs `alive` is false, and `submit` raises ExecutorDiedError.
    """

    def __init__(self, start: Starter) -> None:
        """Start the first executor; raises what starting it raised."""
        self._start = start
        self._client = start()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.restarts = 0
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._thread.start()

    @classmethod
    def start(
        cls, engine: str | os.PathLike[str], config: ExecutorConfig | None = None
    ) -> SupervisedClient:
        """Start an executor as ExecutorClient.start does, and watch it."""
        return cls(lambda: ExecutorClient.start(engine, config))

    @property
    def info(self) -> ExecutorInfo:
        """What the executor that was started last can hold."""
        return self._client.info

    @property
    def pid(self) -> int:
        """The process id of the executor that was started last."""
        return self._client.pid

    @property
    def alive(self) -> bool:
        """Whether an executor runs now."""
        return self._client.alive

    def submit(
        self, request_id: str, prompt_token_ids: list[int], params: TokenParams, sink: Sink
    ) -> None:
        """Start a request, as ExecutorClient.submit does."""
        self._client.submit(request_id, prompt_token_ids, params, sink)

    def abort(self, request_id: str) -> None:
        """End a request; one that is unknown or has ended is left alone."""
        self._client.abort(request_id)

    def stats(self, detail: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """Return the executor's statistics, and how often it was started again."""
        return {**self._client.stats(detail, timeout), "restarts": self.restarts}

    def shutdown(self, timeout: float = 10.0) -> None:
        """End the executor for good; may be called again."""
        self._ended.set()
        with self._lock:
            self._client.shutdown(timeout)
        self._thread.join(timeout)

    def _supervise(self) -> None:
        delay, started = _FIRST_DELAY, time.monotonic()
        while not self._ended.wait(_POLL_SECONDS):
            if self._client.alive:
                continue
            if time.monotonic() - started > _HEALTHY_SECONDS:
                delay = _FIRST_DELAY
            print(f"The executor has ended; it is started again in {delay:g} s.", file=sys.stderr)
            if self._ended.wait(delay):
                return
            delay, started = min(2 * delay, _LONGEST_DELAY), time.monotonic()
            self._replace()

    def _replace(self) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._client.shutdown()
            try:
                self._client = self._start()
                self.restarts += 1
            except (EnginewrightError, OSError) as error:
                print(f"The executor could not be started again: {error}", file=sys.stderr)
