"""Which positions of a step want logits: samples, drafts to verify, prompt tokens to judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .plan import StepPlan
from .request import Request

NO_TOKENS: list[int] = []


@dataclass(slots=True)
class LogitRows:
    """The logit rows of one step, in order; the first five lists have one entry a row."""

    rows: list[int] = field(default_factory=list[int])  # of the plan
    offsets: list[int] = field(default_factory=list[int])  # token index within the plan's row
    ahead: list[list[int]] = field(default_factory=list[list[int]])  # drafts before its token
    forced: list[int] = field(default_factory=list[int])  # the token it is about; -1: sampled
    firsts: list[int] = field(default_factory=list[int])  # of each sample row
    prompt_firsts: dict[int, int] = field(default_factory=dict[int, int])  # by plan row

    def add(self, row: int, offset: int, ahead: list[int], forced: int = -1) -> None:
        """Append one logit row."""
        self.rows.append(row)
        self.offsets.append(offset)
        self.ahead.append(ahead)
        self.forced.append(forced)


def lay_out(plan: StepPlan, requests: Mapping[int, Request]) -> LogitRows:
    """Return the logit rows of a plan that has drafts or prompt rows."""
    result = LogitRows()
    samples = set(plan.sample_rows)
    for row in sorted(samples | plan.prompt_rows.keys()):
        last = plan.counts[row] - 1
        if row in plan.prompt_rows:
            _add_prompt(result, plan, row, requests[plan.requests[row]])
        if row in samples:
            result.firsts.append(len(result.rows))
            drafts = plan.drafts.get(row, NO_TOKENS)
            for count in range(len(drafts) + 1):
                result.add(row, last - len(drafts) + count, drafts[:count])
    return result


def _add_prompt(result: LogitRows, plan: StepPlan, row: int, request: Request) -> None:
    start, count = plan.starts[row], plan.counts[row]
    judged = min(start + count, request.prompt_tokens - 1) - start  # the last one predicts
    result.prompt_firsts[row] = len(result.rows)
    for offset in range(judged - plan.prompt_rows[row], judged):
        result.add(row, offset, NO_TOKENS, request.tokens[start + offset + 1])
