"""How full queue, batch and KV pool are at a moment, and what waiting requests wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .kv_cache import KvCache
from .request import Request


def read_gauges(
    running: Mapping[int, Request], waiting: Mapping[int, Request], cache: KvCache
) -> dict[str, int]:
    """Return counts of requests, blocks and tokens.

    A block is used while a request needs it; a cached block that nobody needs counts as free.
    `kv_tokens` are the tokens in used blocks; `tail_waste_tokens` the empty places in requests'
    last blocks.
    """
    size = cache.block_tokens
    held = sum(len(request.blocks) for request in running.values())
    waste = held * size - sum(request.computed_tokens for request in running.values())
    used = cache.num_blocks - cache.num_available
    return {
        "running": len(running),
        "waiting": len(waiting),
        "num_blocks": cache.num_blocks,
        "used_blocks": used,
        "free_blocks": cache.num_available,
        "cached_blocks": cache.num_cached,
        "pinned_blocks": cache.num_pinned,
        "block_tokens": size,
        "kv_tokens": max(used * size - waste, 0),
        "tail_waste_tokens": waste,
    }


def read_live_view(
    context: list[Request], waiting: Mapping[int, Request], cache: KvCache
) -> dict[str, Any]:
    """Return what the live page shows beside the gauges.

    That is the number of requests that read their prompt, the states of all blocks, and how many
    requests wait for what.
    """
    return {
        "context": len(context),
        "block_states": cache.states(),
        "waiting_by_cause": dict(Counter(one.waits_for.value for one in waiting.values())),
    }
