"""What the executor counts: requests, tokens, steps and times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from .plan import StepPlan
from .request import Request, RequestStatus

STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
WAIT_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts of values at or below each bound, not cumulated; the last count is above all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def as_dict(self) -> dict[str, Any]:
        """Return `bounds`, `counts` (one more than bounds), `sum` and `count`."""
        return {
            "bounds": self._bounds,
            "counts": list(self._counts),
            "sum": self._sum,
            "count": sum(self._counts),
        }


class ExecutorStats:
    """Counters since the executor started; seconds everywhere."""

    def __init__(self) -> None:
        self.steps = 0
        self.failed_steps = 0
        self.prompt_tokens = 0  # computed
        self.cached_tokens = 0  # prompt tokens found rather than computed
        self.generation_tokens = 0  # that requests got
        self.wasted_tokens = 0  # computed for requests that had ended meanwhile
        self.pauses = 0
        self.submitted = 0
        self.ended: dict[str, int] = {
            status.value: 0
            for status in RequestStatus
            if status not in (RequestStatus.WAITING, RequestStatus.RUNNING)
        }
        self.finish_reasons: dict[str, int] = {"stop": 0, "length": 0}
        self.rejected_by_cause: dict[str, int] = {}
        self.busy_seconds = 0.0
        self._batch_size = Histogram(BATCH_SIZES)
        self._step_seconds = Histogram(STEP_SECONDS)
        self._host_seconds = Histogram(STEP_SECONDS)
        self._queue_seconds = Histogram(WAIT_SECONDS)
        self._first_token_seconds = Histogram(WAIT_SECONDS)
        self._request_seconds = Histogram(WAIT_SECONDS)

    def rejected(self, cause: str) -> None:
        """Count a request that was refused, by the code of the reason."""
        self.ended["rejected"] += 1
        self.rejected_by_cause[cause] = self.rejected_by_cause.get(cause, 0) + 1

    def queued(self, seconds: float) -> None:
        """Count a request that begins to run for the first time, after that long."""
        self._queue_seconds.add(seconds)

    def first_token(self, request: Request) -> None:
        """Count the time to a request's first token."""
        self._first_token_seconds.add(request.first_token - request.arrived)

    def end(self, request: Request) -> None:
        """Count a request that has ended."""
        self.ended[request.status.value] += 1
        self._request_seconds.add(request.ended - request.arrived)

    def step(self, plan: StepPlan, device_seconds: float, total_seconds: float) -> None:
        """Count a step that gave its tokens; `total_seconds` is with the host's work."""
        self.steps += 1
        rows = len(plan.requests)
        self.prompt_tokens += plan.num_tokens - (rows - plan.num_context)
        self.busy_seconds += total_seconds
        self._batch_size.add(rows)
        self._step_seconds.add(total_seconds)
        self._host_seconds.add(max(total_seconds - device_seconds, 0.0))

    def snapshot(self) -> dict[str, Any]:
        """Return every counter and histogram as plain values."""
        return {
            "steps": self.steps,
            "failed_steps": self.failed_steps,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generation_tokens": self.generation_tokens,
            "wasted_tokens": self.wasted_tokens,
            "pauses": self.pauses,
            "busy_seconds": self.busy_seconds,
            "submitted": self.submitted,
            "ended": dict(self.ended),
            "finish_reasons": dict(self.finish_reasons),
            "rejected_by_cause": dict(self.rejected_by_cause),
            "batch_size": self._batch_size.as_dict(),
            "step_seconds": self._step_seconds.as_dict(),
            "host_seconds": self._host_seconds.as_dict(),
            "queue_seconds": self._queue_seconds.as_dict(),
            "first_token_seconds": self._first_token_seconds.as_dict(),
            "request_seconds": self._request_seconds.as_dict(),
        }
