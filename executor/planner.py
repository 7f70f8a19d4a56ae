"""The plan of a step: whose tokens it computes, how many, and who starts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .admission import Admission
from .chunks import ChunkBudget, make_share
from .iterations import IterationLog
from .kv_cache import KvCache
from .limits import SchedulerLimits
from .plan import Move, StepPlan
from .policies import CapacityPolicy
from .preemption import Preemption
from .request import Request
from .running import RunningSet
from .stats import ExecutorStats
from .waiting import WaitingQueue

NO_DRAFTS: Mapping[int, list[int]] = MappingProxyType({})


class Planner:
    """Fills steps: a token for each answer first, then chunks of prompts, then requests that start.

    Starts and pauses requests on the way; what a plan holds is promised to its step.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        waiting: WaitingQueue,
        running: RunningSet,
        cache: KvCache,
        policy: CapacityPolicy,
        preemption: Preemption,
        stats: ExecutorStats,
        log: IterationLog,
    ) -> None:
        self._max_num_tokens = limits.max_num_tokens
        self._max_rows = limits.max_batch_size  # logit rows in a step
        self._waiting = waiting
        self._running = running
        self._cache = cache
        self._pauses = policy.pauses
        self._preemption = preemption
        self._admission = Admission(waiting, running, cache, policy)
        self._share_chunks = make_share(limits.chunk_policy)
        self._budget = ChunkBudget(limits.itl_target_ms, cache.block_tokens, limits.max_num_tokens)
        self._stats = stats
        self._log = log
        self._spare_rows = 0  # logit rows of the step that is planned, beyond one a sequence

    def draftable(self) -> tuple[list[Request], int]:
        """Return the sequences that may have drafts, and how many drafts there is room for.

        There are none while a prompt is read.
        """
        context, generation = self._running.split()
        if context:
            return [], 0
        coming = min(len(self._waiting), self._running.num_free_slots)
        rows = self._max_rows - len(generation) - coming
        generation = [one for one in generation if one.processors is None]
        return generation, max(min(rows, self._max_num_tokens - len(generation) - coming), 0)

    def plan(self, step: int, now: float, drafts: Mapping[int, list[int]]) -> StepPlan | None:
        """Return the plan of a step; None if there is nothing that it can compute."""
        context, generation = self._running.split()
        if self._pauses:
            generation = self._preemption.secure(generation, now)
            context = [request for request in context if request.slot >= 0]
        if drafts:
            drafts = self._affordable(generation, drafts)
        num_drafts = sum(map(len, drafts.values()))
        num_generation = len(generation) + num_drafts
        coming = min(len(self._waiting), self._running.num_free_slots)
        self._spare_rows = self._max_rows - len(self._running.requests) - coming - num_drafts
        budget = min(self._max_num_tokens - num_generation, self._budget.tokens(len(generation)))
        chunks = self._chunk(context, budget, len(generation))
        rows = [(one, count) for one, count in zip(context, chunks, strict=True) if count]
        num_going_on = len(rows)
        moves: list[Move] = []
        if self._waiting and _is_served(context, chunks):
            self._admit(rows, moves, budget - sum(chunks), now)
        if not rows and not generation:
            return None
        plan = StepPlan(
            step=step,
            requests=[],
            slots=[],
            starts=[],
            counts=[],
            num_context=len(rows),
            sample_rows=[],
            admitted=list(range(num_going_on, len(rows))),
            new_blocks=[(one.slot, 0, list(one.blocks)) for one, _ in rows[num_going_on:]],
            num_tokens=sum(count for _, count in rows) + num_generation,
            moves=moves,
            is_processed=self._running.num_processed > 0,
        )
        for request, count in rows:
            self._running.advance(plan, request, count)
        for request in generation:
            self._running.advance(plan, request, 1, drafts.get(request.number, ()))
        return plan

    def measured(self, plan: StepPlan, seconds: float) -> None:
        """Take in how long the device took for a step."""
        num_generation = len(plan.requests) - plan.num_context
        self._budget.measured(plan.num_tokens - num_generation, num_generation, seconds)

    def _chunk(self, context: list[Request], budget: int, num_generation: int) -> list[int]:
        """Return how many tokens each request that reads known tokens computes now."""
        if not context:
            return []
        missing = [len(request.tokens) - request.computed_tokens for request in context]
        if self._pauses:
            self._preemption.limit(context, missing, num_generation)
        for index, request in enumerate(context):
            missing[index] = self._with_rows(request, missing[index])
        return self._share_chunks(missing, budget, self._cache.block_tokens)

    def _with_rows(self, request: Request, count: int) -> int:
        """Return how many of a request's next `count` tokens there are logit rows for.

        Every running sequence has one; prompt tokens with log-probabilities share those to spare.
        """
        if request.params.prompt_logprobs is None:
            return count
        free = max(len(request.prompt_logprobs) - request.computed_tokens, 0) + 1
        taken = min(count, free + max(self._spare_rows, 0))
        self._spare_rows -= max(taken - free, 0)
        return taken

    def _admit(
        self,
        rows: list[tuple[Request, int]],
        moves: list[Move],
        budget: int,
        now: float,
    ) -> None:
        """Start waiting requests; append their rows, and what is moved before the step."""
        left = budget

        def start(request: Request) -> int:
            nonlocal left
            if request.started < 0:
                self._stats.queued(now - request.arrived)
                self._log.started(now - request.arrived)
            moves.extend(self._cache.start(request))
            self._waiting.start(request)
            self._running.start(request, now)
            count = min(left, len(request.tokens) - request.computed_tokens)
            count = self._with_rows(request, count)
            rows.append((request, count))
            left -= count
            return count

        self._admission.admit(budget, start)

    def _affordable(
        self, generation: list[Request], drafts: Mapping[int, list[int]]
    ) -> Mapping[int, list[int]]:
        """Return the drafts of those that go on; none if blocks are short.

        Where nobody pauses, the blocks up to the longest answer are promised, so they are there.
        """
        drafts = {one.number: drafts[one.number] for one in generation if one.number in drafts}
        if self._pauses:
            needed = sum(
                self._cache.missing_blocks(
                    one, one.computed_tokens + 1 + len(drafts.get(one.number, ()))
                )
                for one in generation
            )
            if needed > self._cache.num_available:
                return NO_DRAFTS
        return drafts


def _is_served(context: list[Request], chunks: list[int]) -> bool:
    """Return whether nobody who reads a prompt lacks tokens of the step, so that others may start.

    A prompt whose log-probabilities are wanted lacks logit rows, which others need not wait for.
    """
    return all(
        count == len(request.tokens) - request.computed_tokens
        or request.params.prompt_logprobs is not None
        for request, count in zip(context, chunks, strict=True)
    )
