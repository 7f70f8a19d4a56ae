"""Time to the first token from a cold cache, from the disk tier and from memory.

Run with `python -m tests.benchmarks.kv_disk ENGINE`. The disk's own speed does not show: the
system still has the files in memory.
"""

from __future__ import annotations

import sys
import tempfile
import time

from enginewright import LLM, SamplingParams

PROMPT = [(i * 37) % 40_000 + 10 for i in range(1900)]
OTHER = [5] * 40
SETTLE_SECONDS = 2.0  # for the weights to lie where they stay, and for blocks to be written


def first_token_ms(llm: LLM) -> float:
    """Return how long the first token of the prompt takes."""
    begun = time.perf_counter()
    llm.generate(PROMPT, SamplingParams(max_tokens=1, temperature=0))
    return (time.perf_counter() - begun) * 1e3


def main() -> None:
    """Print the three times, and what a block costs."""
    with tempfile.TemporaryDirectory() as folder:
        for life in ("cold", "from disk"):
            with LLM(sys.argv[1], kv_cache_disk=folder) as llm:
                llm.generate(OTHER, SamplingParams(max_tokens=4, temperature=0))
                time.sleep(SETTLE_SECONDS)
                print(f"{life:<12}{first_token_ms(llm):>8.1f} ms")
                if life == "cold":
                    continue
                stats = llm.get_stats()
                seconds, blocks = stats["disk_load_seconds"], stats["disk_loaded_blocks"]
                print(f"{'':<12}{seconds / blocks * 1e3:>8.2f} ms for each of {blocks} blocks")
                print(f"{'from memory':<12}{first_token_ms(llm):>8.1f} ms")


if __name__ == "__main__":
    main()
