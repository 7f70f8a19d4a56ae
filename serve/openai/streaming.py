"""How an answer leaves: whole or as server-sent events, aborted when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...executor.messages import TokenLogprob
from ...runtime.errors import EnginewrightError
from ..async_generation import AsyncGeneration
from ..generation import Delta
from .errors import body_of, json_response

CLIENT_CLOSED_REQUEST = 499  # nginx's status for it; nobody is left to read it


@dataclass(slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    choices_per_prompt: int = 1
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, delta: Delta) -> None:
        """Count one delta."""
        self.completion_tokens += len(delta.token_ids)
        if delta.index % self.choices_per_prompt == 0:
            self.cached_tokens += delta.cached_tokens

    def to_json(self) -> dict[str, Any]:
        """Return OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True)
class WholeChoice:
    """One choice, all of it."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        """Append one delta."""
        self.text += delta.text
        self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


class Shape(Protocol):
    """What an endpoint's answers look like."""

    def opening(self) -> bytes:
        """Return the events that come before any text."""
        ...

    def event(self, delta: Delta) -> bytes:
        """Return the event of one delta; empty when it has nothing to tell."""
        ...

    def usage_event(self, usage: Usage) -> bytes:
        """Return the event that carries the usage."""
        ...

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        ...


async def read_body(request: Request, limit: int) -> bytes:
    """Return the request's body; more than `limit` bytes are refused with 413."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise HTTPException(413, f"the request body is larger than {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def answer(
    request: Request,
    generation: AsyncGeneration,
    shape: Shape,
    *,
    stream: bool,
    include_usage: bool,
) -> Response:
    """Run a generation and answer with it; refusals are raised before a stream opens."""
    prompts = generation.generation.prompts
    usage = Usage(sum(map(len, prompts)), len(generation.generation.choices) // len(prompts))
    opened = False
    try:
        async with _abort_on_disconnect(request.receive, generation.abort) as gone:
            await generation.start()
            if stream and not gone.is_set():
                opened = True
                return EventStream(generation, shape, usage, include_usage)
            choices = [WholeChoice() for _ in generation.generation.choices]
            async for deltas in generation.batches():
                for delta in deltas:
                    usage.add(delta)
                    choices[delta.index].add(delta)
        if gone.is_set():
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return json_response(shape.whole(choices, usage))
    finally:
        if not opened:
            generation.abort()


class EventStream(Response):
    """Server-sent events of one generation."""

    media_type = "text/event-stream"

    def __init__(
        self, generation: AsyncGeneration, shape: Shape, usage: Usage, include_usage: bool
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._shape = shape
        self._usage = usage
        self._include_usage = include_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; a client that goes away aborts the generation at once."""
        try:
            async with _abort_on_disconnect(receive, self._generation.abort) as gone:
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                async for events in self._events():
                    if gone.is_set():
                        return
                    await send({"type": "http.response.body", "body": events, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._generation.abort()

    async def _events(self) -> AsyncIterator[bytes]:
        opening = self._shape.opening()
        try:
            async for deltas in self._generation.batches():
                for delta in deltas:
                    self._usage.add(delta)
                events = b"".join(map(self._shape.event, deltas))
                if opening or events:
                    yield opening + events
                    opening = b""
            if self._include_usage:
                yield self._shape.usage_event(self._usage)
        except EnginewrightError as error:
            yield _data(body_of(error))
        yield b"data: [DONE]\n\n"


def _data(content: Any) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


@asynccontextmanager
async def _abort_on_disconnect(
    receive: Receive, abort: Callable[[], None]
) -> AsyncIterator[asyncio.Event]:
    """Call `abort` as soon as the client goes away while the block runs."""
    gone = asyncio.Event()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        abort()

    watcher = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watcher.cancel()
