"""Who of the waiting requests starts in a step, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable

from .kv_cache import KvCache
from .policies import CapacityPolicy
from .request import Request, WaitCause
from .running import RunningSet
from .waiting import WaitingQueue

SCANNED = 32  # waiting requests that are looked at in a step
MAX_OVERTAKEN = 16  # requests that may start before one that waits for blocks and was before them
MAX_PREFIX_WAITS = 256  # steps that a request may wait for a prefix that another computes


class Admission:
    """Starts waiting requests in their order, with two exceptions, both bounded.

    A request that waits for blocks is overtaken by those behind it that fit, at most
    `MAX_OVERTAKEN` times; then nobody behind it starts before it does. A request whose next block
    another one computes just now waits for it, at most `MAX_PREFIX_WAITS` steps, and does not hold
    up anybody meanwhile.
    """

    def __init__(
        self, waiting: WaitingQueue, running: RunningSet, cache: KvCache, policy: CapacityPolicy
    ) -> None:
        self._waiting = waiting
        self._running = running
        self._cache = cache
        self._policy = policy

    def admit(self, budget: int, start: Callable[[Request], int]) -> None:
        """Start requests while the step's tokens, slots and blocks last.

        `start` gives a request its slot and returns how many of the step's tokens it takes.
        """
        running = self._running.requests.values()
        if not self._policy.admits(running):
            self._mark(WaitCause.BATCH)
            return
        room = self._policy.room(running, self._cache)
        late: list[Request] = []
        for request in self._waiting.in_order(SCANNED):
            if not budget or not self._running.has_room:
                request.waits_for = WaitCause.SLOTS if budget else WaitCause.TOKENS
                return
            if any(other.overtaken >= MAX_OVERTAKEN for other in late):
                request.waits_for = WaitCause.ORDER
                return
            if self._waits_for_prefix(request):
                continue
            claim = self._policy.claim(request, self._cache)
            if claim > room:
                request.waits_for = WaitCause.BLOCKS
                late.append(request)
                if room < 1:
                    return
                continue
            room -= claim
            for other in late:
                other.overtaken += 1
            budget -= start(request)

    def _waits_for_prefix(self, request: Request) -> bool:
        if request.prefix_waits >= MAX_PREFIX_WAITS or self._cache.producer(request) is None:
            return False
        request.prefix_waits += 1
        request.waits_for = WaitCause.PREFIX
        return True

    def _mark(self, cause: WaitCause) -> None:
        for request in self._waiting.in_order(SCANNED):
            request.waits_for = cause
