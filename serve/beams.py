"""The beams of a search: the likeliest answers so far, extended a token at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..executor.messages import TokenLogprob


@dataclass(frozen=True, slots=True)
class Beam:
    """An answer in the making, or one that has ended."""

    entries: tuple[TokenLogprob, ...] = ()
    total: float = 0.0  # sum of log-probabilities
    stopped_by: int | None = None  # the stop token it ends with

    def score(self, length_penalty: float) -> float:
        """Return the total divided by the length to the power of the penalty."""
        return self.total / max(len(self.entries), 1) ** length_penalty

    @property
    def token_ids(self) -> list[int]:
        """The answer's tokens."""
        return [entry.token_id for entry in self.entries]


class Beams:
    """The search itself: takes each live beam's likeliest tokens, knows when it is over.

    With `early_stopping` it ends as soon as `width` answers have ended; without, when no live beam
    can become better than the worst of those (as far as its present length tells).
    """

    def __init__(
        self,
        width: int,
        most_tokens: int,
        stop_ids: frozenset[int],
        *,
        min_tokens: int = 0,
        length_penalty: float = 1.0,
        early_stopping: bool = True,
    ) -> None:
        self.width = width
        self.live = [Beam()]
        self._most = most_tokens
        self._stop_ids = stop_ids
        self._min_tokens = min_tokens
        self._penalty = length_penalty
        self._early = early_stopping
        self._ended: list[Beam] = []
        self._length = 0

    @property
    def candidates(self) -> int:
        """How many of each beam's likeliest tokens a step needs."""
        return 2 * self.width + len(self._stop_ids) * (self._min_tokens > self._length)

    @property
    def over(self) -> bool:
        """Whether no step can change the result."""
        return not self.live or self._length >= self._most or self._is_decided

    @property
    def _is_decided(self) -> bool:
        """Whether enough answers have ended, and no live beam can better the worst of them."""
        if len(self._ended) < self.width:
            return False
        best = max((beam.score(self._penalty) for beam in self.live), default=-math.inf)
        return self._early or best <= self._ended[self.width - 1].score(self._penalty)

    def step(self, tops: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Extend the live beams by their likeliest tokens, (id, log-probability), best first."""
        early = self._length < self._min_tokens
        longer = [
            (beam.total + logprob, place, token, logprob)
            for place, (beam, top) in enumerate(zip(self.live, tops, strict=True))
            for token, logprob in top
            if not (early and token in self._stop_ids)
        ]
        longer.sort(key=lambda one: (-one[0], one[1], one[2]))
        live: list[Beam] = []
        for rank, (total, place, token, logprob) in enumerate(longer):
            if len(live) == self.width:
                break
            entry = TokenLogprob(token, logprob, list(tops[place]))
            entries = (*self.live[place].entries, entry)
            if token not in self._stop_ids:
                live.append(Beam(entries, total))
            elif rank < self.width:
                self._ended.append(Beam(entries, total, token))
        self.live = live
        self._length += 1
        self._ended.sort(key=lambda beam: -beam.score(self._penalty))

    def best(self) -> list[Beam]:
        """Return the best answers, at most `width`; live ones count where the length ends them."""
        found = self._ended if self._is_decided else self._ended + self.live
        return sorted(found, key=lambda beam: -beam.score(self._penalty))[: self.width]
