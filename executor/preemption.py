"""Pausing: when blocks run out, the requests that started last give theirs back and wait again."""

from __future__ import annotations

from .kv_cache import KvCache
from .request import Request, RequestStatus
from .running import RunningSet
from .stats import ExecutorStats
from .waiting import WaitingQueue


class Preemption:
    """Moves running requests back into the queue.

    A paused request keeps its tokens, stands before all others of its priority, and finds its
    blocks in the prefix tree unless they were needed. The request that started first never pauses,
    so that one always comes to its end.
    """

    def __init__(
        self, waiting: WaitingQueue, running: RunningSet, cache: KvCache, stats: ExecutorStats
    ) -> None:
        self._waiting = waiting
        self._running = running
        self._cache = cache
        self._stats = stats

    def secure(self, generation: list[Request], now: float) -> list[Request]:
        """Return the answers that have a block for their next token; the newest pause for others.

        The oldest come first. Who gets no block now has one when the paused ones have landed.
        """
        chosen: list[Request] = []
        left = self._cache.num_available
        coming = sum(len(one.blocks) for one in self._running.requests.values() if one.is_pausing)
        for request in generation:
            need = self._cache.missing_blocks(request, request.computed_tokens + 1)
            while need > left and not coming and _goes_on(request):
                coming = self.pause_newest(now)
                taken = sum(
                    self._cache.missing_blocks(one, one.computed_tokens + 1) for one in chosen
                )
                left = self._cache.num_available - taken
            if not _goes_on(request):
                continue
            if need > left:
                coming = max(coming - need, 0)
                continue
            left -= need
            chosen.append(request)
        return chosen

    def limit(self, context: list[Request], missing: list[int], reserved: int) -> None:
        """Lower what prompts miss to what available blocks hold; the oldest come first.

        `reserved` blocks are for the answers' next tokens.
        """
        left = max(self._cache.num_available - reserved, 0)
        for index, request in enumerate(context):
            done = request.computed_tokens
            room = (len(request.blocks) + left) * self._cache.block_tokens - done
            missing[index] = min(missing[index], room)
            left -= self._cache.missing_blocks(request, done + missing[index])

    def pause_newest(self, now: float) -> int:
        """Pause who started last, at once or when it lands; return how many blocks come then."""
        request = self._running.newest()
        self._stats.pauses += 1
        request.is_pausing = True
        blocks = len(request.blocks)
        return 0 if self.landed(request, now) else blocks

    def landed(self, request: Request, now: float) -> bool:
        """Move a request that pauses into the queue, if no step in flight has it any more."""
        if not request.is_pausing or request.flights or request.slot < 0:
            return False
        request.is_pausing = False
        request.pauses += 1
        request.computed_tokens = 0
        request.prefix_waits = request.overtaken = 0
        self._running.end(request)
        request.move(RequestStatus.WAITING, now)
        self._waiting.ended(request)
        self._waiting.append(request)
        self._cache.enqueue(request)
        return True


def _goes_on(request: Request) -> bool:
    return request.slot >= 0 and not request.is_pausing
