"""Generations in an asyncio loop: the executor's outputs cross threads once a batch."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from ..executor.messages import TokenOutput
from ..runtime.errors import EnginewrightError, ServerStoppingError
from .generation import Choice, Delta, Generation


class Observer(Protocol):
    """Who is told about a generation as it goes; called in the loop's thread."""

    def on_delta(self, delta: Delta) -> None:
        """Take one delta of a choice."""
        ...


class Mailbox:
    """Carries outputs from the client's thread into the loop, one wake-up for all that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: deque[tuple[AsyncGeneration, Choice, TokenOutput]] = deque()

    def post(self, generation: AsyncGeneration, choice: Choice, output: TokenOutput) -> None:
        """Leave one output for its generation; callable from any thread."""
        with self._lock:
            self._waiting.append((generation, choice, output))
            wake = len(self._waiting) == 1
        if wake:
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: nobody is left to read
                return

    def _drain(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for generation, choice, output in waiting:
            generation.receive(choice, output)


class AsyncGeneration:
    """One generation as an asynchronous iterator over batches of deltas."""

    def __init__(
        self,
        generation: Generation,
        mailbox: Mailbox,
        observer: Observer,
        request_id: str | None = None,
    ) -> None:
        self.generation = generation
        self.request_id = request_id  # the client's name for the request, by which it is cancelled
        self._mailbox = mailbox
        self._observer = observer
        self._ready: list[Delta] = []
        self._waiter: asyncio.Future[None] | None = None

    async def start(self, patience: float | None = None) -> None:
        """Submit and wait for the first output, for `patience` seconds at most.

        Raises what the executor refused the request with, so that no stream opens on it.
        """
        self.generation.submit(self._post)
        await self._wait(patience)
        for delta in self._ready:
            if delta.error is not None:
                self.abort()
                raise delta.error

    async def batches(self, patience: float | None = None) -> AsyncIterator[list[Delta]]:
        """Yield all deltas, as many at a time as have arrived; ends when every choice has.

        An empty list says that nothing has arrived in `patience` seconds. Raises the error of a
        choice that failed, after aborting the others.
        """
        while self._ready or not self.generation.finished:
            await self._wait(patience)
            ready, self._ready = self._ready, []
            for delta in ready:
                if delta.error is not None:
                    self.abort()
                    raise delta.error
            yield ready

    def abort(self, error: EnginewrightError | None = None) -> None:
        """End what has not ended; iteration stops at once, with `error` if there is one."""
        for delta in self.generation.abort():
            delta.error = error
            self._add(delta)

    def receive(self, choice: Choice, output: TokenOutput) -> None:
        """Take one output; called by the mailbox in the loop's thread."""
        delta = self.generation.receive(choice, output)
        if delta is None:
            return
        if delta.finish_reason == "cancelled":  # by whoever ends the executor
            delta.error = ServerStoppingError("the request was cancelled: the server is stopping")
        self._add(delta)

    def _post(self, choice: Choice, output: TokenOutput) -> None:
        self._mailbox.post(self, choice, output)

    def _add(self, delta: Delta) -> None:
        self._observer.on_delta(delta)
        self._ready.append(delta)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, patience: float | None) -> None:
        if self._ready:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if patience is None else loop.call_later(patience, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
