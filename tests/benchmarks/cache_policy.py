"""Hit rates of the prefix cache on synthetic traces, LRU beside ours.

Run with `python -m tests.benchmarks.cache_policy`. Nothing is computed: the time to the first token
is taken as proportional to the prompt tokens that are not found.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from enginewright.executor.eviction import AdaptiveOrder, Evictable, EvictionOrder
from enginewright.executor.kv_blocks import KvBlocks
from enginewright.executor.kv_cache import KvCache
from enginewright.executor.prefix_tree import PrefixTree
from enginewright.executor.request import Request, RequestLimits
from enginewright.executor.sampling import TokenParams

BLOCK = 32
LIMITS = RequestLimits(1 << 20, 1 << 30, 1 << 31)
TOKEN_MS = 1.0  # a prompt token's time; only ratios matter
Trace = Iterator[tuple[list[int], bool]]  # prompt, and whether its hits are counted


class LruOrder:
    """Least recently used, over the leaves of a tree."""

    def __init__(self, num_blocks: int) -> None:
        self._heap: list[tuple[int, int, Evictable, int]] = []
        self._entries = 0

    def added(self, node: Evictable) -> None:
        """Nothing is remembered."""

    def hit(self, node: Evictable) -> None:
        """Nothing is remembered."""

    def offer(self, node: Evictable) -> None:
        node.stamp += 1
        self._entries += 1
        heapq.heappush(self._heap, (node.used, self._entries, node, node.stamp))

    def pop(self) -> Evictable:
        while True:
            _, _, node, stamp = heapq.heappop(self._heap)
            if stamp == node.stamp and node.is_loose:
                node.stamp += 1
                return node


def text(rng: random.Random, tokens: int) -> list[int]:
    """Random tokens."""
    return [rng.randrange(50_000) for _ in range(tokens)]


def chat(rng: random.Random) -> Trace:
    """Conversations of several turns under twelve system prompts, some used far more."""
    systems = [text(rng, rng.randrange(200, 1200)) for _ in range(12)]
    weights = [1 / (rank + 1) for rank in range(12)]
    live: list[list[int]] = []
    for _ in range(4000):
        if len(live) < 24:
            live.append(rng.choices(systems, weights)[0] + text(rng, rng.randrange(20, 200)))
        index = rng.randrange(len(live))
        yield live[index], True
        live[index] = live[index] + text(rng, rng.randrange(60, 400))
        if rng.random() < 0.25:
            live.pop(index)


def few_shot(rng: random.Random) -> Trace:
    """Batches that share long lists of examples; tasks come back after a while."""
    tasks = [text(rng, rng.randrange(800, 3000)) for _ in range(16)]
    for _ in range(120):
        task = rng.choices(tasks, [1 / (rank + 1) for rank in range(16)])[0]
        for _ in range(rng.randrange(8, 48)):
            yield task + text(rng, rng.randrange(20, 150)), True


def scan_burst(rng: random.Random) -> Trace:
    """Chat, and again and again a burst of long prompts that never come back."""
    for index, (prompt, _) in enumerate(chat(rng)):
        yield prompt, True
        if index % 250 == 249:
            for _ in range(60):
                yield text(rng, rng.randrange(500, 2500)), False


@dataclass(slots=True)
class Score:
    """Prompt tokens and those found, of the prompts that count."""

    tokens: int = 0
    found: int = 0
    prompts: int = 0

    @property
    def hit_rate(self) -> float:
        return self.found / self.tokens

    @property
    def first_token_ms(self) -> float:
        return (self.tokens - self.found) * TOKEN_MS / self.prompts


def play(trace: Trace, num_blocks: int, order: Callable[[int], EvictionOrder]) -> Score:
    """Serve a trace, eight requests in flight at a time."""
    blocks = KvBlocks(num_blocks, BLOCK)
    cache = KvCache(blocks, PrefixTree(blocks, order(num_blocks)))
    score, running = Score(), []
    for number, (prompt, counts) in enumerate(trace):
        request = Request(number, str(number), prompt, TokenParams(max_tokens=1), LIMITS, 0.0)
        while running and (
            len(running) == 8 or cache.num_available < cache.blocks_for(len(prompt))
        ):
            cache.release(running.pop(0))
        cache.enqueue(request)
        cache.start(request)
        if counts:
            score.tokens += len(prompt)
            score.found += request.cached_tokens
            score.prompts += 1
        cache.grow(request, len(prompt))
        cache.publish(request, len(prompt))
        running.append(request)
    return score


def main() -> None:
    """Print a table."""
    print(f"{'trace':<12}{'blocks':>8}{'LRU':>9}{'ours':>9}{'first token, LRU = 1':>24}")
    for name, trace in (("chat", chat), ("few-shot", few_shot), ("scan burst", scan_burst)):
        for num_blocks in (400, 800, 1600):
            lru = play(trace(random.Random(1)), num_blocks, LruOrder)
            ours = play(trace(random.Random(1)), num_blocks, AdaptiveOrder)
            ratio = ours.first_token_ms / lru.first_token_ms
            print(
                f"{name:<12}{num_blocks:>8}{lru.hit_rate:>9.1%}{ours.hit_rate:>9.1%}{ratio:>24.2f}"
            )


if __name__ == "__main__":
    main()
