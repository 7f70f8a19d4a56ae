"""The determinism check: greedy answers one at a time, compared with those of many at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .datasets import Prompt
from .http_stream import HttpClient
from .load import Load, Outcome, RequestOptions, run_load


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many answers were compared, which prompts differed, and how many had no answer."""

    compared: int
    different: list[int]  # indices of prompts
    failed: int

    @property
    def same(self) -> bool:
        """Whether every answer came, and all were the same."""
        return not self.different and not self.failed


async def check_determinism(
    client: HttpClient, prompts: Sequence[Prompt], options: RequestOptions, concurrency: int
) -> Verdict:
    """Compare the answers at concurrency 1 with those at `concurrency`, sent in another order."""
    alone, _ = await run_load(client, prompts, options, Load(max_concurrency=1))
    order = list(range(len(prompts)))
    random.Random(0).shuffle(order)
    shuffled = [prompts[number] for number in order]
    together, _ = await run_load(client, shuffled, options, Load(max_concurrency=concurrency))
    pairs = [(number, alone[number], other) for number, other in zip(order, together, strict=True)]
    answered = [pair for pair in pairs if not (pair[1].error or pair[2].error)]
    different = sorted(
        number for number, first, second in answered if _answer(first) != _answer(second)
    )
    return Verdict(len(answered), different, len(pairs) - len(answered))


def _answer(outcome: Outcome) -> tuple[str, tuple[int, ...]]:
    return outcome.text, tuple(outcome.token_ids)
