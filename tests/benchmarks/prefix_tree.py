"""Operations of the prefix tree a second, up to 100,000 cached blocks.

Run with `python -m tests.benchmarks.prefix_tree`. One operation is the life of a request of 16
blocks in the tree: found, started, computed, published, released; the pool is full at the end of
each row, so evictions are part of the last.
"""

from __future__ import annotations

import random
import time

from enginewright.executor.eviction import AdaptiveOrder
from enginewright.executor.kv_blocks import KvBlocks
from enginewright.executor.kv_cache import KvCache
from enginewright.executor.prefix_tree import PrefixTree
from enginewright.executor.request import Request, RequestLimits
from enginewright.executor.sampling import TokenParams

BLOCK = 32
SIZES = (1_000, 10_000, 100_000)
MEASURED = 2000
LIMITS = RequestLimits(1 << 20, 1 << 30, 1 << 31)
PARAMS = TokenParams(max_tokens=1)


def serve(cache: KvCache, number: int, prompt: list[int]) -> None:
    """Run one request through the cache."""
    request = Request(number, "", prompt, PARAMS, LIMITS, 0.0)
    cache.enqueue(request)
    cache.start(request)
    cache.grow(request, len(prompt))
    cache.publish(request, len(prompt))
    cache.release(request)


def measure(num_blocks: int) -> tuple[float, float, float]:
    """Return microseconds of a request: all new, half of it cached, and new in a full pool."""
    blocks = KvBlocks(num_blocks, BLOCK)
    cache = KvCache(blocks, PrefixTree(blocks, AdaptiveOrder(num_blocks)))
    rng = random.Random(0)
    bases = [[rng.randrange(50_000) for _ in range(8 * BLOCK)] for _ in range(64)]

    def run(count: int, shared: bool) -> float:
        prompts = [
            (rng.choice(bases) if shared else [])
            + [rng.randrange(50_000) for _ in range((8 if shared else 16) * BLOCK)]
            for _ in range(count)
        ]
        begun = time.perf_counter()
        for number, prompt in enumerate(prompts):
            serve(cache, number, prompt)
        return (time.perf_counter() - begun) / count * 1e6

    while cache.num_cached < num_blocks - 16 * min(MEASURED, num_blocks // 32):
        run(min(1000, num_blocks // 64), False)
    fresh = run(min(MEASURED, num_blocks // 32), False)
    return fresh, run(MEASURED, True), run(MEASURED, False)


def main() -> None:
    """Print a table."""
    print(f"{'cached blocks':>13}{'new':>10}{'half cached':>13}{'full pool':>11}  microseconds")
    for size in SIZES:
        fresh, shared, full = measure(size)
        print(f"{size:>13}{fresh:>10.0f}{shared:>13.0f}{full:>11.0f}")


if __name__ == "__main__":
    main()
