"""Load on an OpenAI-compatible server: `python -m tests.benchmarks.load URL [options]`.

Prints one JSON object with the keys of `vllm bench serve`. Sockets are asyncio's own, so that the
client costs little of the two cores that it shares with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

REQUEST_SECONDS = 300.0
TEMPLATE_TOKENS = 31  # that SmolLM2's chat template adds to one message
# Words that are one token each after a space.
WORDS = """apple river stone cloud paper green small water light house table music north ocean
forest winter summer garden window bridge market doctor letter number picture silver yellow orange
animal mother father sister brother friend teacher student school church street village island
mountain valley desert field flower tree grass leaf root seed fruit bread butter cheese sugar salt
coffee morning evening night month year century moment story history science language question
answer reason problem idea thought memory dream heart mind body hand foot head face voice sound
color shape size weight speed power force energy heat cold fire wind rain snow storm earth moon
star planet space ship train plane road path door wall floor roof room kitchen bottle glass plate
knife spoon book page line word name sign map ring coin gold iron wood cotton silk wool leather
shoe shirt coat hat dress king queen prince soldier captain farmer hunter sailor writer painter
singer dancer player leader worker driver judge guard guest child woman man people family group
team army nation country city town""".split()


@dataclass(slots=True)
class Answer:
    """What came of one request; seconds."""

    sent: float
    times: list[float] = field(default_factory=list)  # of events with text
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


def prompt(rng: random.Random, words: int) -> str:
    """Return random words."""
    return " ".join(rng.choices(WORDS, k=words))


def prompts(count: int, words: int, shared: int = 0, prefix: str = "0") -> list[str]:
    """Return prompts that share their first `shared` words, and nothing else."""
    common = prompt(random.Random(f"prefix {prefix}"), shared) + " " if shared else ""
    rng = random.Random()
    return [common + prompt(rng, words) for _ in range(count)]


async def drive(
    host: str,
    port: int,
    model: str,
    texts: Sequence[str],
    concurrency: int,
    max_tokens: int,
    starts: Sequence[float] | None = None,
    extra: dict[str, Any] | None = None,
) -> tuple[list[Answer], float]:
    """Send all texts, at most `concurrency` at once and none before its start, in seconds.

    Returns the answers and the seconds that all took.
    """
    waiting = list(zip(texts, starts or [0.0] * len(texts), strict=True))[::-1]
    begin = time.perf_counter()
    answers: list[Answer] = []

    async def client() -> None:
        while waiting:
            text, start = waiting.pop()
            if (rest := begin + start - time.perf_counter()) > 0:
                await asyncio.sleep(rest)
            body = {
                "model": model,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
                **({"ignore_eos": True} if extra is None else extra),
            }
            answers.append(await _ask(host, port, json.dumps(body).encode()))

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return answers, time.perf_counter() - begin


async def _ask(host: str, port: int, body: bytes) -> Answer:
    answer = Answer(time.perf_counter())
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for event in _events(host, port, body):
                _take(answer, event)
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    if not answer.error and not answer.times:
        answer.error = "no text"
    answer.tokens = answer.tokens or len(answer.times)
    return answer


def _take(answer: Answer, event: bytes) -> None:
    data = json.loads(event)
    if "error" in data:
        answer.error = str(data["error"])[:300]
    if usage := data.get("usage"):
        answer.tokens = usage["completion_tokens"]
        answer.prompt_tokens = usage["prompt_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        answer.cached_tokens = details.get("cached_tokens") or 0
    for choice in data.get("choices") or ():
        if choice.get("delta", {}).get("content"):
            answer.times.append(time.perf_counter())


async def _events(host: str, port: int, body: bytes) -> AsyncIterator[bytes]:
    """Post a chat request on a connection of its own and yield the data of every event."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    try:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if int(answer.split(None, 2)[1]) != 200:
            text = await reader.read(400)
            raise ValueError(f"{answer.splitlines()[0].decode()}: {text!r}")
        # The chunks' own frames stand on lines of their own, so that lines of data can be picked
        # out of either body: an event of these servers never contains a line break.
        while line := await reader.readline():
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data
    finally:
        writer.close()


def summary(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """Return the figures of a run, with the keys of `vllm bench serve`."""
    good = [a for a in answers if not a.error]
    tokens, prompt_tokens = sum(a.tokens for a in good), sum(a.prompt_tokens for a in good)
    result: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": tokens,
        "request_throughput": len(good) / seconds,
        "output_throughput": tokens / seconds,
        "total_token_throughput": (tokens + prompt_tokens) / seconds,
        "cached_prompt_tokens": sum(a.cached_tokens for a in good),
    }
    gaps = [b - a for x in good for a, b in zip(x.times, x.times[1:], strict=False)]
    rows = {
        "ttft": [a.times[0] - a.sent for a in good],
        "itl": gaps,
        "tpot": [(a.times[-1] - a.times[0]) / (a.tokens - 1) for a in good if a.tokens > 1],
        "e2el": [a.times[-1] - a.sent for a in good],
    }
    for name, values in rows.items():
        values.sort()
        result[f"mean_{name}_ms"] = 1e3 * sum(values) / len(values) if values else None
        for percent, label in ((50, "median"), (90, "p90"), (99, "p99")):
            result[f"{label}_{name}_ms"] = _percentile(values, percent)
    if len(good) < len(answers):
        result["first_error"] = next(a.error for a in answers if a.error)
    return result


def _percentile(values: list[float], percent: float) -> float | None:
    if not values:
        return None
    place = (len(values) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return 1e3 * (values[low] + (values[high] - values[low]) * (place - low))


def main() -> None:
    """Run one load from the command line; loopback addresses only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="for example http://127.0.0.1:8000")
    parser.add_argument("--model", default="")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--number", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=127)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--shared-words", type=int, default=0)
    options = parser.parse_args()
    address = urlsplit(options.url)
    if address.hostname not in ("127.0.0.1", "localhost"):
        parser.error("only a server on this machine is put under load")
    words = max(1, options.prompt_tokens - TEMPLATE_TOKENS)
    texts = prompts(options.number, words, options.shared_words)
    port = address.port or 80
    answers, seconds = asyncio.run(
        drive(
            address.hostname,
            port,
            options.model,
            texts,
            options.concurrency,
            options.output_tokens,
        )
    )
    print(json.dumps(summary(answers, seconds), indent=1))


if __name__ == "__main__":
    main()
