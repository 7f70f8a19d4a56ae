"""Speculative decoding: drafts that one step verifies, and whether they pay.

A draft token counts only if it is the token that the sampler draws at its place. The draw depends
on the logits, the seed and the position alone, so the answer has the same bits with and without.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .plan import StepOutput, StepPlan

if TYPE_CHECKING:
    from .request import Request

_MEASURED = 6  # steps of each kind before a decision
_PROBE_EVERY = 256  # steps after which the other kind is tried again
_PROBE_STEPS = 3
_GAIN = 1.02  # drafts must be faster by this much
_WEIGHT = 0.15  # of the newest step in the averages


class Drafter(Protocol):
    """Guesses tokens; a wrong guess costs time and nothing else."""

    name: str

    def propose(self, wanted: Mapping[int, tuple[Request, int]]) -> dict[int, list[int]]:
        """Return guesses by request number, for requests and how many tokens they may have."""
        ...

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all requests but these."""
        ...

    def close(self) -> None:
        """Give back what the drafter holds; it cannot be used afterwards."""
        ...


def accepted(drafts: list[int], sampled: list[int]) -> int:
    """Return how many of the `sampled` tokens count: the one after the last right draft ends it."""
    count = 0
    while count < len(drafts) and drafts[count] == sampled[count]:
        count += 1
    return count + 1


@dataclass(slots=True)
class _Pace:
    """Seconds a token of each sequence, with and without drafts, for about one batch size."""

    seconds: list[float]
    measured: list[int]
    steps: int = 0

    def add(self, drafted: bool, seconds: float) -> None:
        kind = int(drafted)
        self.measured[kind] += 1
        if self.measured[kind] == 1:
            self.seconds[kind] = seconds
        else:
            # The first steps count equally, so that one slow one does not decide for long.
            weight = max(_WEIGHT, 1 / self.measured[kind])
            self.seconds[kind] += weight * (seconds - self.seconds[kind])

    @property
    def pays(self) -> bool:
        return self.seconds[1] * _GAIN < self.seconds[0]


class Governor:
    """Switches drafts on and off by the time a token takes with and without them.

    Batch sizes are told apart by powers of two. The kind that is not used is tried now and then.
    """

    def __init__(self) -> None:
        self._paces: dict[int, _Pace] = {}
        self.switches = 0
        self._was_on = True

    def wants_drafts(self, rows: int) -> bool:
        """Return whether the next step of so many sequences should have drafts."""
        pace = self._pace(rows)
        pace.steps += 1
        if min(pace.measured) < _MEASURED:
            return pace.measured[1] < _MEASURED
        on = pace.pays
        self.switches += on != self._was_on
        self._was_on = on
        return on != (pace.steps % _PROBE_EVERY < _PROBE_STEPS)

    def observe(self, rows: int, new_tokens: int, drafted: bool, seconds: float) -> None:
        """Take in a step that computed generation alone."""
        self._pace(rows).add(drafted, seconds * rows / max(new_tokens, 1))

    def _pace(self, rows: int) -> _Pace:
        bucket = rows.bit_length()
        if bucket not in self._paces:
            self._paces[bucket] = _Pace([0.0, 0.0], [0, 0])
        return self._paces[bucket]


class Speculator:
    """Asks a drafter for each step's drafts, and counts what became of them."""

    def __init__(self, drafter: Drafter, most_tokens: int) -> None:
        self._drafter = drafter
        self._most = most_tokens  # drafts of one sequence in one step
        self._governor = Governor()
        self._lengths: dict[int, int] = {}  # by request number: drafts to ask for
        self._drafted_tokens = self._accepted_tokens = 0
        self._drafted_rows = self._drafted_steps = self._steps = 0
        self._drafting_seconds = 0.0  # for the step in hand
        self._failed = False

    def wants(self, num_running: int) -> bool:
        """Return whether the next step should have drafts; asked once a step."""
        return num_running > 0 and not self._failed and self._governor.wants_drafts(num_running)

    def propose(self, requests: Iterable[Request], room: int) -> dict[int, list[int]]:
        """Return drafts by request number for sequences that have one token to compute.

        `room` is how many tokens and logit rows the step has left. A drafter that fails is not
        asked again.
        """
        begun = time.perf_counter()
        wanted: dict[int, tuple[Request, int]] = {}
        for request in requests:
            left = request.max_new_tokens - (len(request.tokens) - request.prompt_tokens) - 1
            most = min(self._lengths.get(request.number, self._most), left, room)
            if most > 0:
                wanted[request.number] = (request, most)
                room -= most
        try:
            return self._drafter.propose(wanted) if wanted else {}
        except Exception:
            traceback.print_exc()
            self._failed = True
            return {}
        finally:
            self._drafting_seconds = time.perf_counter() - begun

    def landed(self, plan: StepPlan, output: StepOutput, seconds: float) -> None:
        """Take in what became of a step's drafts, and the step's time but for the drafting."""
        new_tokens = len(plan.sample_rows)
        if plan.drafts:
            assert output.firsts is not None
            for row, first in zip(plan.sample_rows, output.firsts, strict=True):
                if drafts := plan.drafts.get(row):
                    right = accepted(drafts, output.tokens[first : first + len(drafts) + 1]) - 1
                    self._verified(plan.requests[row], len(drafts), right)
                    new_tokens += right
            seconds += self._drafting_seconds
        if plan.num_context == 0 and not plan.prompt_rows:
            self._steps += 1
            self._drafted_steps += bool(plan.drafts)
            self._governor.observe(len(plan.requests), new_tokens, bool(plan.drafts), seconds)

    def _verified(self, number: int, drafted: int, right: int) -> None:
        """Count a request's drafts; its next ones are as long as seems right."""
        self._drafted_rows += 1
        self._drafted_tokens += drafted
        self._accepted_tokens += right
        length = right + 1 if right < drafted else drafted + 2
        self._lengths[number] = max(1, min(length, self._most))

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all requests but these."""
        if len(self._lengths) > 2 * len(numbers) + 64:
            self._lengths = {n: one for n, one in self._lengths.items() if n in numbers}
        self._drafter.keep(numbers)

    def close(self) -> None:
        """Give back what the drafter holds."""
        self._drafter.close()

    def snapshot(self) -> dict[str, Any]:
        """Return the figures under names of TensorRT-LLM's iteration stats, since the start."""
        rows = max(self._drafted_rows, 1)
        return {
            "drafter": self._drafter.name,
            "num_draft_tokens": self._drafted_tokens,
            "num_accepted_tokens": self._accepted_tokens,
            "num_requests_with_draft_tokens": self._drafted_rows,
            "acceptance_rate": self._accepted_tokens / max(self._drafted_tokens, 1),
            "acceptance_length": 1 + self._accepted_tokens / rows,
            "generation_steps": self._steps,
            "drafted_steps": self._drafted_steps,
            "switches": self._governor.switches,
        }
