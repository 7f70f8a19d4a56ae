"""How an answer leaves: whole or as server-sent events, aborted when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...executor.messages import TokenLogprob
from ...runtime.errors import EnginewrightError
from ..async_generation import AsyncGeneration
from ..generation import Delta
from ..service import service_of
from .bodies import answer_headers
from .errors import json_response

CLIENT_CLOSED_REQUEST = 499  # nginx's status for it; nobody is left to read it
_KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients pass over


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
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] | None = None  # from the prompt's second token on
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        """Append one delta."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


class Shape(Protocol):
    """What an endpoint's answers look like."""

    def opening(self, usage: Usage) -> bytes:
        """Return the events that come before any text."""
        ...

    def event(self, delta: Delta, usage: Usage) -> bytes:
        """Return the events of one delta; empty when it has nothing to tell."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """Return the events after the last delta."""
        ...

    def failure(self, error: EnginewrightError, usage: Usage) -> bytes:
        """Return the events that end a stream with an error."""
        ...

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        ...


async def answer(
    request: Request, generation: AsyncGeneration, shape: Shape, *, stream: bool
) -> Response:
    """Run a generation and answer with it; refusals are raised before a stream opens."""
    keep_alive = service_of(request).keep_alive_seconds
    prompts = generation.generation.prompts
    usage = Usage(sum(map(len, prompts)), len(generation.generation.choices) // len(prompts))
    headers = answer_headers(request)
    opened = False
    try:
        async with abort_on_disconnect(request.receive, generation.abort) as gone:
            await generation.start(keep_alive if stream else None)
            if stream and not gone.is_set():
                opened = True
                return EventStream(generation, shape, usage, keep_alive, headers)
            choices = [WholeChoice() for _ in generation.generation.choices]
            async for deltas in generation.batches():
                for delta in deltas:
                    usage.add(delta)
                    choices[delta.index].add(delta)
        if gone.is_set():
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return json_response(shape.whole(choices, usage), headers=headers)
    finally:
        if not opened:
            generation.abort()


class EventStream(Response):
    """Server-sent events of one generation; a comment after each silent `keep_alive` seconds."""

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: AsyncGeneration,
        shape: Shape,
        usage: Usage,
        keep_alive: float | None,
        headers: dict[str, str],
    ) -> None:
        headers = headers | {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._generation = generation
        self._shape = shape
        self._usage = usage
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; a client that goes away aborts the generation at once."""
        try:
            async with abort_on_disconnect(receive, self._generation.abort) as gone:
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
        shape, usage = self._shape, self._usage
        opening = b""
        opened = False
        try:
            async for deltas in self._generation.batches(self._keep_alive):
                if not deltas:
                    yield _KEEP_ALIVE
                    continue
                if not opened:
                    opened = True
                    opening = shape.opening(usage)
                parts: list[bytes] = []
                for delta in deltas:
                    usage.add(delta)
                    parts.append(shape.event(delta, usage))
                events = b"".join(parts)
                if opening or events:
                    yield opening + events
                    opening = b""
            yield shape.closing(usage)
        except EnginewrightError as error:
            yield (b"" if opened else shape.opening(usage)) + shape.failure(error, usage)


def data_event(content: Any) -> bytes:
    """Return an event that carries JSON and has no name."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


def named_event(name: str, content: Any) -> bytes:
    """Return an event that carries JSON and has a name."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(content) + b"\n\n"


@asynccontextmanager
async def abort_on_disconnect(
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
