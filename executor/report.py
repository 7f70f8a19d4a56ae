"""What the scheduler tells of itself: gauges, records, and what waiting requests wait for."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .iterations import IterationLog
from .kv_cache import KvCache
from .plan import StepPlan
from .running import RunningSet
from .stats import ExecutorStats
from .waiting import WaitingQueue


class Report:
    """Reads the books of the scheduler's owners; changes none of them."""

    def __init__(
        self,
        waiting: WaitingQueue,
        running: RunningSet,
        cache: KvCache,
        stats: ExecutorStats,
        log: IterationLog,
    ) -> None:
        self._waiting = waiting
        self._running = running
        self._cache = cache
        self._stats = stats
        self._log = log

    def counts(self) -> tuple[int, int, int]:
        """Return how many requests run and wait, and how many blocks are available."""
        return len(self._running.requests), len(self._waiting), self._cache.num_available

    def gauges(self) -> dict[str, Any]:
        """Return how full queue, batch and KV pool are at this moment.

        A block is used while a request needs it; a cached block that nobody needs counts as free.
        `kv_tokens` are the tokens in used blocks; `tail_waste_tokens` the empty places in
        requests' last blocks.
        """
        cache, running = self._cache, self._running.requests
        size = cache.block_tokens
        held = sum(len(request.blocks) for request in running.values())
        waste = held * size - sum(request.computed_tokens for request in running.values())
        used = cache.num_blocks - cache.num_available
        return {
            "running": len(running),
            "waiting": len(self._waiting),
            "waiting_tokens": self._waiting.num_tokens,
            "num_blocks": cache.num_blocks,
            "used_blocks": used,
            "free_blocks": cache.num_available,
            "cached_blocks": cache.num_cached,
            "pinned_blocks": cache.num_pinned,
            "block_tokens": size,
            "kv_tokens": max(used * size - waste, 0),
            "tail_waste_tokens": waste,
            **cache.disk_gauges(),
        }

    def live_view(self) -> dict[str, Any]:
        """Return what the live page shows beside the gauges.

        That is the number of requests that read their prompt, the states of all blocks, and how
        many requests wait for what.
        """
        waiting = self._waiting.requests.values()
        return {
            "context": len(self._running.split()[0]),
            "block_states": self._cache.states(),
            "waiting_by_cause": dict(Counter(one.waits_for.value for one in waiting)),
        }

    def record(self, plan: StepPlan, done: float, seconds: float) -> None:
        """Note a step whose output was taken in."""
        running = self._running.requests
        counts = len(running), len(self._waiting), self._stats.pauses
        self._log.step(plan, running.values(), counts, done, seconds)

    def records(self) -> dict[str, Any]:
        """Return the records of steps and requests since they were last asked for."""
        alive = [*self._running.requests.values(), *self._waiting.requests.values()]
        return self._log.read(alive)
