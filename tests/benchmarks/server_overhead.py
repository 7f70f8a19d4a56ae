"""What the HTTP process costs: time a token at 256 streams, and memory over many requests.

python -m tests.benchmarks.server_overhead [--requests 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from enginewright.serve.bench.datasets import Lengths, Prompt, synthetic_prompts
from enginewright.serve.bench.http_stream import HttpClient
from enginewright.serve.bench.load import Load, Outcome, RequestOptions, run_load
from tests.serve.tiny_tokenizer import write_tokenizer

from .stub_executor import STREAMS, VOCAB_SIZE
from .stub_server import stub_server

_TICKS = os.sysconf("SC_CLK_TCK")
_PARTS = 10


def main() -> None:
    """Run both measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder / "tokenizer")
        with stub_server(folder, "--log-level", "warning") as (pid, port):
            asyncio.run(_measure(pid, port, arguments.tokens, arguments.requests))


async def _measure(pid: int, port: int, tokens: int, requests: int) -> None:
    client = HttpClient(f"http://127.0.0.1:{port}")
    for chat in (False, True):
        prompts = [Prompt([10 + number % 90], tokens) for number in range(STREAMS)]
        if chat:
            prompts = [Prompt("hello", tokens) for _ in range(STREAMS)]
        await run_load(client, prompts, RequestOptions(chat=chat), Load())  # warm-up
        before, begun = _cpu_seconds(pid), time.perf_counter()
        outcomes, _ = await run_load(client, prompts, RequestOptions(chat=chat), Load())
        spent, wall = _cpu_seconds(pid) - before, time.perf_counter() - begun
        _check(outcomes, tokens, ordered=not chat)
        total = sum(outcome.output_tokens for outcome in outcomes)
        print(
            f"{'chat' if chat else 'completions'}: {STREAMS} streams, {total} tokens in "
            f"{wall:.1f} s; the HTTP process took {1e6 * spent / total:.1f} us a token",
            flush=True,
        )
    prompts = synthetic_prompts(requests // _PARTS, Lengths(8, 4), seed=0)
    for part in range(_PARTS):
        outcomes, wall = await run_load(client, prompts, RequestOptions(), Load(max_concurrency=64))
        assert not any(outcome.error for outcome in outcomes), outcomes[0].error
        done = (part + 1) * len(prompts)
        print(f"after {done} requests: {_resident_mb(pid):.1f} MB ({len(prompts) / wall:.0f}/s)")
    await client.close()


def _check(outcomes: Sequence[Outcome], tokens: int, ordered: bool) -> None:
    """Raise unless every stream has all its tokens, in their order."""
    for number, outcome in enumerate(outcomes):
        assert not outcome.error, outcome.error
        assert outcome.output_tokens == tokens
        if ordered:
            first = 10 + number % 90
            expected = [(first + 1 + place) % VOCAB_SIZE for place in range(tokens)]
            assert outcome.token_ids == expected, f"stream {number} lost or reordered tokens"


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the process has no resident size")


if __name__ == "__main__":
    main()
