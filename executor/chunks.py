"""How many prompt tokens a step takes, and how the prompts share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

ChunkPolicyName = Literal["first_come_first_served", "equal_progress"]

_SMOOTHING = 0.2  # weight of the newest measurement


def first_come_first_served(missing: Sequence[int], budget: int, unit: int) -> list[int]:
    """Return a chunk for each prompt: the first gets all it misses, then the next."""
    chunks: list[int] = []
    for tokens in missing:
        count = min(tokens, budget)
        chunks.append(count)
        budget -= count
    return chunks


def equal_progress(missing: Sequence[int], budget: int, unit: int) -> list[int]:
    """Return a chunk for each prompt: all get a unit in turn, until the budget is spent."""
    chunks: list[int] = [0] * len(missing)
    hungry: list[int] = [index for index, tokens in enumerate(missing) if tokens]
    while hungry and budget:
        rounds = max(1, budget // (unit * len(hungry)))
        for index in hungry:
            count = min(unit * rounds, missing[index] - chunks[index], budget)
            chunks[index] += count
            budget -= count
        hungry = [index for index in hungry if chunks[index] < missing[index]]
    return chunks


def make_share(name: ChunkPolicyName) -> Callable[[Sequence[int], int, int], list[int]]:
    """Return the function of that policy: of missing tokens, budget and unit to chunks."""
    return equal_progress if name == "equal_progress" else first_come_first_served


class ChunkBudget:
    """Adapts the prompt tokens of a step so that running answers get their next token in time.

    A step's time is taken as that of its answers' tokens, plus a cost for each prompt token; both
    are averages over the measured steps, in which the newest weigh most. The budget grows at most
    twofold from one step to the next, and is never below one block, so that prompts go on.
    """

    def __init__(self, target_ms: float | None, block_tokens: int, max_num_tokens: int) -> None:
        self._target = None if target_ms is None else target_ms / 1e3
        self._least = min(block_tokens, max_num_tokens)
        self._most = max_num_tokens
        self._base: float | None = None  # seconds of a step without prompt tokens
        self._cost: float | None = None  # seconds a prompt token
        self._budget = self._least

    def tokens(self, num_generation: int) -> int:
        """Return the most prompt tokens of a step beside that many answers."""
        if self._target is None or num_generation == 0:
            return self._most
        return self._budget

    def measured(self, context_tokens: int, num_generation: int, seconds: float) -> None:
        """Take in the time of a step."""
        if self._target is None:
            return
        if context_tokens == 0:
            self._base = _smooth(self._base, seconds)
        elif num_generation or context_tokens > self._least:
            base = min(self._base or 0.0, seconds)
            self._cost = _smooth(self._cost, (seconds - base) / context_tokens)
        if self._cost is None or (num_generation == 0 and context_tokens):
            return
        left = self._target - (self._base or 0.0)
        fits = int(left / self._cost) if self._cost > 0 else self._most
        fits = min(fits, 2 * self._budget, self._most)
        if fits < self._budget or context_tokens >= self._budget // 2:
            self._budget = max(fits, self._least)


def _smooth(average: float | None, value: float) -> float:
    return value if average is None else average + _SMOOTHING * (value - average)
