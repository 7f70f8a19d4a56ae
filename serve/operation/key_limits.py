"""How much of the server each key uses at this moment, held against its limits."""

from __future__ import annotations

import math
from collections import deque

from .keys import KeyRule

_MINUTE = 60.0


class KeyLimiter:
    """Counts requests of each key; times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._starts: dict[str, deque[float]] = {}  # of the last minute

    def enter(self, rule: KeyRule, now: float) -> int:
        """Count a request in and return 0, or return the seconds after which to try again."""
        running = self._in_flight.get(rule.name, 0)
        if rule.max_in_flight is not None and running >= rule.max_in_flight:
            return 1
        if rule.requests_per_minute is not None:
            starts = self._starts.setdefault(rule.name, deque())
            while starts and starts[0] <= now - _MINUTE:
                starts.popleft()
            if len(starts) >= rule.requests_per_minute:
                return max(1, math.ceil(starts[0] + _MINUTE - now))
            starts.append(now)
        self._in_flight[rule.name] = running + 1
        return 0

    def leave(self, rule: KeyRule) -> None:
        """Count a request out that was counted in."""
        self._in_flight[rule.name] -= 1
