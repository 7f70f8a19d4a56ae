"""A record for every step and every ended request, with the fields of TensorRT-LLM's statistics.

Beyond those: KV occupancy in tokens, waste in last blocks, and why a request waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .kv_cache import KvCache
from .plan import StepPlan
from .request import Request, RequestStatus

KEPT = 1000  # records of each kind that wait to be read


@dataclass(frozen=True, slots=True)
class _Step:
    """One step; blocks and requests as they were when it was done."""

    plan: StepPlan
    done: float
    seconds: float
    queue_seconds: float  # of those that started in it, together
    running: int
    waiting: int
    ended: int  # since the step before
    paused: int
    used_blocks: int
    cached_blocks: int
    allocated_blocks: int  # since the start
    reused_blocks: int
    missed_blocks: int
    tail_waste: int


class IterationLog:
    """Keeps the newest records until they are read; reading takes them out."""

    def __init__(self, cache: KvCache, max_running: int) -> None:
        self._cache = cache
        self._max_running = max_running
        self._steps: deque[_Step] = deque(maxlen=KEPT)
        self._ended: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._ended_since = 0
        self._queue_seconds = 0.0
        self._paused = 0

    def started(self, queue_seconds: float) -> None:
        """Note a request that starts for the first time."""
        self._queue_seconds += queue_seconds

    def ended(self, request: Request) -> None:
        """Note a request that has ended."""
        self._ended_since += 1
        self._ended.append({**describe(request), **_timing(request)})

    def step(
        self,
        plan: StepPlan,
        running: Iterable[Request],
        counts: tuple[int, int, int],
        done: float,
        seconds: float,
    ) -> None:
        """Note a step; `counts` are running and waiting requests, and pauses since the start."""
        cache = self._cache
        waste = sum(len(one.blocks) * cache.block_tokens - one.computed_tokens for one in running)
        num_running, num_waiting, pauses = counts
        self._steps.append(
            _Step(
                plan,
                done,
                seconds,
                self._queue_seconds,
                num_running,
                num_waiting,
                self._ended_since,
                pauses - self._paused,
                cache.num_blocks - cache.num_available,
                cache.num_cached,
                cache.allocated_blocks,
                cache.reused_blocks,
                cache.missed_blocks,
                waste,
            )
        )
        self._queue_seconds, self._ended_since, self._paused = 0.0, 0, pauses

    def read(self, requests: Iterable[Request]) -> dict[str, Any]:
        """Return and forget the records; `requests` are those that wait or run."""
        steps = [self._as_dict(step) for step in self._steps]
        ended = list(self._ended)
        self._steps.clear()
        self._ended.clear()
        return {
            "iterations": steps,
            "requests": [describe(request) for request in requests],
            "ended_requests": ended,
        }

    def _as_dict(self, step: _Step) -> dict[str, Any]:
        plan, size = step.plan, self._cache.block_tokens
        rows = len(plan.requests)
        looked_up = step.reused_blocks + step.missed_blocks
        context_tokens = sum(plan.counts[: plan.num_context])
        kv_tokens = max(step.used_blocks * size - step.tail_waste, 0)
        return {
            "timestamp": step.done,
            "iter": plan.step,
            "iterLatencyMS": step.seconds * 1e3,
            "newActiveRequestsQueueLatencyMS": step.queue_seconds * 1e3,
            "numNewActiveRequests": len(plan.admitted),
            "numActiveRequests": step.running,
            "numQueuedRequests": step.waiting,
            "numCompletedRequests": step.ended,
            "maxNumActiveRequests": self._max_running,
            "kvCacheStats": {
                "maxNumBlocks": self._cache.num_blocks,
                "freeNumBlocks": self._cache.num_blocks - step.used_blocks,
                "usedNumBlocks": step.used_blocks,
                "cachedNumBlocks": step.cached_blocks,
                "tokensPerBlock": size,
                "allocTotalBlocks": step.allocated_blocks,
                "allocNewBlocks": sum(len(new) for _, _, new in plan.new_blocks),
                "reusedBlocks": step.reused_blocks,
                "missedBlocks": step.missed_blocks,
                "cacheHitRate": step.reused_blocks / looked_up if looked_up else 0.0,
                "usedTokens": kv_tokens,
                "tailWasteTokens": step.tail_waste,
                "fragmentation": step.tail_waste / (step.used_blocks * size)
                if step.used_blocks
                else 0.0,
            },
            "inflightBatchingStats": {
                "numScheduledRequests": rows,
                "numContextRequests": plan.num_context,
                "numGenRequests": rows - plan.num_context,
                "numPausedRequests": step.paused,
                "numCtxTokens": context_tokens,
                "microBatchId": 0,
                "avgNumDecodedTokensPerIter": (plan.num_tokens - context_tokens)
                / max(rows - plan.num_context, 1),
            },
        }


def describe(request: Request) -> dict[str, Any]:
    """Return where a request stands."""
    waits = request.status is RequestStatus.WAITING
    return {
        "id": request.request_id,
        "stage": request.status.value,
        "waitsFor": request.waits_for.value if waits else None,
        "tenant": request.tenant,
        "priority": request.params.priority,
        "promptTokens": request.prompt_tokens,
        "contextPrefillPosition": min(request.computed_tokens, request.prompt_tokens),
        "numGeneratedTokens": len(request.tokens) - request.prompt_tokens,
        "cachedTokens": request.cached_tokens,
        "blocks": len(request.blocks),
        "pauses": request.pauses,
        "overtaken": request.overtaken,
    }


def _timing(request: Request) -> dict[str, float]:
    """Return when a request changed its state; -1 for what did not happen."""
    return {
        "arrival": request.arrived,
        "firstScheduled": request.started,
        "firstToken": request.first_token,
        "lastToken": request.last_token,
        "ended": request.ended,
    }
