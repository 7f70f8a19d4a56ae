"""The load generator: sends prompts in an open or a closed loop, and times every chunk."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from .datasets import Prompt
from .http_stream import HttpClient


@dataclass(frozen=True, slots=True)
class Load:
    """How requests arrive: at a rate (open loop), or as others end (closed loop)."""

    request_rate: float = float("inf")  # requests a second
    burstiness: float = 1.0  # shape of the gaps: 1 is Poisson, less is burstier
    max_concurrency: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What all requests have in common."""

    model: str | None = None
    chat: bool = False  # /v1/chat/completions instead of /v1/completions
    temperature: float = 0.0
    extras: bool = True  # ignore_eos and return_token_ids, which OpenAI itself refuses
    fields: dict[str, Any] = field(default_factory=dict)  # added to every body as they are

    @property
    def path(self) -> str:
        """The endpoint."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, prompt: Prompt) -> bytes:
        """Return the body of one request."""
        content = prompt.content
        body: dict[str, Any] = {
            "max_tokens": prompt.output_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.model is not None:
            body["model"] = self.model
        if not self.chat:
            body["prompt"] = content
        elif prompt.is_chat:
            body["messages"] = content
        else:
            text = content if isinstance(content, str) else " ".join(map(str, content))
            body["messages"] = [{"role": "user", "content": text}]
        if self.extras:
            body |= {"ignore_eos": True, "return_token_ids": True}
        return orjson.dumps(body | self.fields)


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are seconds; `chunks` holds (time since sent, tokens)."""

    begun: float = 0.0  # since the run began
    latency: float = 0.0
    chunks: list[tuple[float, int]] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    status: int = 0
    error: str = ""

    @property
    def first_token(self) -> float:
        """Time to the first chunk that has content."""
        return self.chunks[0][0]


async def run_load(
    client: HttpClient,
    prompts: Sequence[Prompt],
    options: RequestOptions,
    load: Load,
    on_end: Callable[[], None] = lambda: None,
) -> tuple[list[Outcome], float]:
    """Send all prompts; return their outcomes in order, and the seconds it took."""
    slots = asyncio.Semaphore(load.max_concurrency or len(prompts) or 1)
    gaps = random.Random(load.seed)
    started = time.perf_counter()

    async def one(prompt: Prompt) -> Outcome:
        async with slots:
            outcome = await send_one(client, prompt, options, started)
        on_end()
        return outcome

    tasks: list[asyncio.Task[Outcome]] = []
    due = started
    for prompt in prompts:
        delay = due - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.create_task(one(prompt)))
        if load.request_rate != float("inf"):
            scale = 1 / (load.request_rate * load.burstiness)
            due += gaps.gammavariate(load.burstiness, scale)
    outcomes = list(await asyncio.gather(*tasks))
    return outcomes, time.perf_counter() - started


async def send_one(
    client: HttpClient, prompt: Prompt, options: RequestOptions, started: float
) -> Outcome:
    """Send one request and read its answer; an error becomes part of the outcome."""
    outcome = Outcome()
    body = options.body(prompt)
    sent = time.perf_counter()
    outcome.begun = sent - started
    try:
        outcome.status, chunks = await client.post(options.path, body)
        rest = b""
        async for chunk in chunks:
            now = time.perf_counter() - sent
            if outcome.status != 200:
                outcome.error = _message(chunk)
                continue
            *events, rest = (rest + chunk).split(b"\n\n")
            for event in events:
                if event.startswith(b"data: {"):
                    _take(outcome, orjson.loads(event[6:]), now)
    except (OSError, orjson.JSONDecodeError) as error:
        outcome.error = outcome.error or str(error)
    outcome.latency = time.perf_counter() - sent
    if not outcome.error and not outcome.chunks:
        outcome.error = f"the answer had no content (status {outcome.status})"
    if not outcome.output_tokens:
        outcome.output_tokens = sum(tokens for _, tokens in outcome.chunks)
    return outcome


def _take(outcome: Outcome, event: dict[str, Any], now: float) -> None:
    """Add one event of a stream."""
    if "error" in event:
        outcome.error = str(event["error"].get("message", event["error"]))
        return
    if usage := event.get("usage"):
        outcome.prompt_tokens = usage["prompt_tokens"]
        outcome.output_tokens = usage["completion_tokens"]
        outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
        ids = choice.get("token_ids") or delta.get("token_ids") or []
        if text or ids:
            outcome.text += text
            outcome.token_ids += ids
            outcome.chunks.append((now, max(len(ids), 1)))


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
