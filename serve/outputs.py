"""What an LLM answers with, under TensorRT-LLM's field names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..executor.fork_guard import ForkGuard
from ..executor.messages import TokenLogprob, TokenOutput, floats_of
from ..runtime.errors import EnginewrightError
from .generation import Choice, Delta, Generation


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token, and its rank at its place (1 is the likeliest)."""

    logprob: float
    rank: int | None = None  # None: sampled, but not among the ones that were asked for


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)  # a map a token
    finish_reason: str | None = None  # stop, length or cancelled
    stop_reason: int | str | None = None
    text_diff: str = ""  # what the newest update added

    @property
    def length(self) -> int:
        """Number of tokens so far."""
        return len(self.token_ids)

    def _add(self, delta: Delta) -> None:
        self.text_diff = delta.text
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        for entry in delta.logprobs:
            self.logprobs.append(_logprob_map(entry))
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + entry.logprob
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


def _logprob_map(entry: TokenLogprob) -> dict[int, Logprob]:
    found = {
        token_id: Logprob(logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top, 1)
    }
    found.setdefault(entry.token_id, Logprob(entry.logprob))
    return found


class RequestOutput:
    """A request and its answers so far; grows while the executor works on it.

    Wait for the end with `result()`, `await output` or `await output.aresult()`; of a streaming
    request, iterate (`for` or `async for`): every step gives this object after an update.
    A timeout, a cancelled task or a loop that is left does not end the request; `abort()` does.
    """

    def __init__(self, prompt: str | None, generation: Generation, streaming: bool) -> None:
        self.request_id = generation.request_id
        self.prompt = prompt
        self.prompt_token_ids = generation.prompts[0]
        self.outputs = [CompletionOutput(choice.index) for choice in generation.choices]
        # A map for each prompt token, None for the first; known with the first token.
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.embedding: list[float] | None = None  # of LLM.embed: a vector of length 1
        self._generation: Generation | None = generation  # None at the end: it holds the executor
        self._guard = ForkGuard()
        self._streaming = streaming
        self._changed = threading.Condition()
        self._deltas: list[Delta] = []  # that iteration has not shown yet
        self._error: EnginewrightError | None = None
        self._finished = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def start(self) -> None:
        """Hand the request to the executor; the LLM class calls this once."""
        generation = self._generation
        assert generation is not None
        generation.submit(self._receive)

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return self._finished

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait for the end; raises the request's error, or TimeoutError after `timeout` seconds."""
        self._check_process()
        with self._changed:
            if not self._changed.wait_for(lambda: self._finished, timeout):
                raise TimeoutError(f"no result within {timeout} s")
        return self._checked()

    async def aresult(self) -> RequestOutput:
        """Wait for the end without blocking the event loop; raises the request's error."""
        while not self._finished:
            await self._change(or_delta=False)
        return self._checked()

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self.aresult().__await__()

    def abort(self) -> None:
        """End the request now; what it has generated stays."""
        self._check_process()
        with self._changed:
            if self._generation is not None:
                self._take(self._generation.abort(), self._generation)

    def __iter__(self) -> Iterator[RequestOutput]:
        self._check_streaming()
        while True:
            self._check_process()
            try:
                with self._changed:
                    self._changed.wait_for(lambda: self._deltas or self._finished)
            except KeyboardInterrupt:
                self.abort()
                raise
            if not self._show_next():
                return
            yield self

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        self._check_streaming()
        while True:
            while not (self._deltas or self._finished):
                await self._change(or_delta=True)
            if not self._show_next():
                return
            yield self

    def __repr__(self) -> str:
        return (
            f"RequestOutput(request_id={self.request_id!r}, prompt={self.prompt!r}, "
            f"prompt_token_ids={self.prompt_token_ids!r}, outputs={self.outputs!r}, "
            f"finished={self._finished})"
        )

    def _receive(self, choice: Choice, output: TokenOutput) -> None:
        """Take one output of the executor, on the client's thread."""
        with self._changed:
            generation = self._generation
            delta = None if generation is None else generation.receive(choice, output)
            if generation is not None and delta is not None:
                self._take([delta], generation)

    def _take(self, deltas: Sequence[Delta], generation: Generation) -> None:
        for delta in deltas:
            if delta.error is not None and self._error is None:
                self._error = delta.error
            if delta.prompt_logprobs is not None and self.prompt_logprobs is None:
                self.prompt_logprobs = [None, *map(_logprob_map, delta.prompt_logprobs)]
            if delta.embedding is not None:
                self.embedding = floats_of(delta.embedding)
            if self._streaming:
                self._deltas.append(delta)
            else:
                self.outputs[delta.index]._add(delta)
        self._finished = generation.finished
        if self._finished:
            if not self._streaming:
                self._keep_best(generation)
            self._generation = None
        if deltas:
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
            for loop, future in waiters:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(_wake, future)

    def _keep_best(self, generation: Generation) -> None:
        """Keep the n answers of the highest cumulative log-probability, where more were made."""
        kept = generation.kept
        if len(self.outputs) <= kept or self._error is not None:
            return
        self.outputs.sort(key=lambda one: -(one.cumulative_logprob or 0.0))
        del self.outputs[kept:]
        for index, output in enumerate(self.outputs):
            output.index = index
            if not generation.shows_logprobs:
                output.logprobs = []

    def _show_next(self) -> bool:
        """Move one delta into the outputs; False at the end. Raises the request's error there."""
        with self._changed:
            if self._deltas:
                delta = self._deltas.pop(0)
                self.outputs[delta.index]._add(delta)
                return True
        self._checked()
        return False

    def _checked(self) -> RequestOutput:
        with self._changed:
            for delta in self._deltas:
                self.outputs[delta.index]._add(delta)
            self._deltas.clear()
        if self._error is not None:
            raise self._error
        return self

    def _check_streaming(self) -> None:
        if not self._streaming:
            raise TypeError("only a request made with streaming=True can be iterated over")

    def _check_process(self) -> None:
        """Raise ForkedProcessError where nobody will ever bring the rest of the answer."""
        if not self._finished:
            self._guard.check()

    async def _change(self, *, or_delta: bool) -> None:
        """Wait until the request has ended, or has a delta to show."""
        self._check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._changed:
            if self._finished or (or_delta and self._deltas):
                return
            self._waiters.append((loop, future))
        await future


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
