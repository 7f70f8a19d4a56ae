"""The scheduler: which tokens of which requests the next step computes, and what came of it.

Deals in ints and lists; times are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..runtime.errors import EnginewrightError, RequestError, StepFailedError
from .admission import Admission
from .answers import take_prompt_logprobs, take_tokens
from .chunks import ChunkBudget, make_share
from .deadlines import Deadlines
from .guided import Grammar
from .iterations import IterationLog
from .kv_blocks import BooksError
from .kv_cache import KvCache
from .limits import SchedulerLimits
from .messages import TokenOutput, error_info
from .plan import StepOutput, StepPlan
from .policies import make_policy
from .preemption import Preemption
from .report import Report
from .request import Request, RequestLimits, RequestStatus
from .running import RunningSet
from .sampling import TokenParams
from .stats import ExecutorStats
from .waiting import WaitingQueue

_NO_DRAFTS: Mapping[int, list[int]] = MappingProxyType({})


class Scheduler:
    """Owns the waiting and the running requests; every request ends here, exactly once.

    A step may be planned while the one before is in flight: `schedule`, `schedule`, `update` of the
    first, and so on. What a request holds is given back when no step in flight has it.
    """

    def __init__(self, limits: SchedulerLimits, cache: KvCache, stats: ExecutorStats) -> None:
        self._max_num_tokens = limits.max_num_tokens
        self._max_rows = limits.max_batch_size  # logit rows in a step
        self._limits = RequestLimits(
            limits.max_seq_len, cache.num_blocks * cache.block_tokens, limits.vocab_size
        )
        # A step has a token for every running sequence, so that none of them ever starves.
        num_slots = min(limits.max_batch_size, limits.max_num_tokens)
        self._waiting = WaitingQueue(
            limits.max_queue, limits.max_queue_tokens, limits.tenant_weights
        )
        self._running = RunningSet(num_slots, cache)
        self._cache = cache
        self._policy = make_policy(limits.capacity_policy)
        self._admission = Admission(self._waiting, self._running, cache, self._policy)
        self._share_chunks = make_share(limits.chunk_policy)
        self._budget = ChunkBudget(limits.itl_target_ms, cache.block_tokens, limits.max_num_tokens)
        self._preemption = Preemption(self._waiting, self._running, cache, stats)
        self._log = IterationLog(cache, num_slots)
        self.report = Report(self._waiting, self._running, cache, stats, self._log)
        self._deadlines = Deadlines()
        self._stats = stats
        self._by_id: dict[str, Request] = {}
        self._submitted = 0
        self._step = 0
        self._flights = 0
        self._drafts_in_flight = False
        self._spare_rows = 0  # logit rows of the step that is planned, beyond one a sequence

    @property
    def running(self) -> Mapping[int, Request]:
        """The running requests by number, in order of start."""
        return self._running.requests

    @property
    def waiting(self) -> Mapping[int, Request]:
        """The waiting requests by number."""
        return self._waiting.requests

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute, and no step in flight."""
        return not self._by_id and not self._flights

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        params: TokenParams,
        now: float,
        grammar: Grammar | None = None,
    ) -> None:
        """Put a request into the queue.

        Raises RequestError, ContextLengthError or OverloadedError if it can never run or may not
        wait; then it does not exist.
        """
        self._stats.submitted += 1
        try:
            if request_id in self._by_id:
                message = f"Request id {request_id!r} is in use; choose another."
                raise RequestError(message, "request_id")
            self._waiting.check_room(len(prompt))
            request = Request(
                self._submitted, request_id, prompt, params, self._limits, now, grammar
            )
        except EnginewrightError as error:
            self._stats.rejected(error.code)
            raise
        self._submitted += 1
        self._waiting.append(request)
        self._cache.enqueue(request)
        self._deadlines.add(request)
        self._by_id[request_id] = request

    def draftable(self) -> tuple[list[Request], int]:
        """Return the sequences that may have drafts now, and how many drafts there is room for.

        There are none while a step is in flight or a prompt is read.
        """
        context, generation = self._running.split()
        if context or self._flights:
            return [], 0
        coming = min(len(self._waiting), self._running.num_free_slots)
        rows = self._max_rows - len(generation) - coming
        return generation, max(min(rows, self._max_num_tokens - len(generation) - coming), 0)

    def schedule(self, now: float, drafts: Mapping[int, list[int]] = _NO_DRAFTS) -> StepPlan | None:
        """Plan a step: a token for each running sequence, then prompts; None if there is none.

        `drafts` are tokens, by request number, that may follow those of `draftable` sequences. A
        step that has drafts must be done before the next is planned.
        """
        if self._drafts_in_flight:
            return None
        context, generation = self._running.split()
        if self._policy.pauses:
            generation = self._preemption.secure(generation, now)
            context = [request for request in context if request.slot >= 0]
        drafts = self._affordable(generation, drafts)
        num_drafts = sum(map(len, drafts.values()))
        num_generation = len(generation) + num_drafts
        coming = min(len(self._waiting), self._running.num_free_slots)
        self._spare_rows = self._max_rows - len(self.running) - coming - num_drafts
        budget = min(self._max_num_tokens - num_generation, self._budget.tokens(len(generation)))
        chunks = self._chunk(context, budget, len(generation))
        rows = [(one, count) for one, count in zip(context, chunks, strict=True) if count]
        num_going_on = len(rows)
        copies: list[tuple[int, int]] = []
        if self._waiting and _is_served(context, chunks):
            self._admit(rows, copies, budget - sum(chunks), now)
        if not rows and not generation:
            return self._schedule_stuck(now)
        plan = StepPlan(
            step=self._step,
            requests=[],
            slots=[],
            starts=[],
            counts=[],
            num_context=len(rows),
            sample_rows=[],
            admitted=list(range(num_going_on, len(rows))),
            new_blocks=[(one.slot, 0, list(one.blocks)) for one, _ in rows[num_going_on:]],
            num_tokens=sum(count for _, count in rows) + num_generation,
            copies=copies,
        )
        for request, count in rows:
            self._running.advance(plan, request, count)
        for request in generation:
            self._running.advance(plan, request, 1, drafts.get(request.number, ()))
        self._drafts_in_flight = bool(plan.drafts)
        self._step += 1
        self._flights += 1
        return plan

    def update(self, plan: StepPlan, output: StepOutput, now: float) -> list[TokenOutput]:
        """Take in what a step gave; return the news of its requests.

        Requests that have ended since the step was planned are passed over.
        """
        outputs: list[TokenOutput] = []
        self._flights -= 1
        self._drafts_in_flight = False
        size = self._cache.block_tokens
        samples = {row: index for index, row in enumerate(plan.sample_rows)}
        for row, number in enumerate(plan.requests):
            request = self._running.landed(number)
            index = samples.get(row)
            if request is None:
                self._stats.wasted_tokens += plan.counts[row]
                continue
            if row in plan.prompt_rows:
                take_prompt_logprobs(request, output, row, plan.prompt_rows[row])
            end = plan.starts[row] + plan.counts[row] - len(plan.drafts.get(row, ()))
            if end // size > request.node.depth:
                self._cache.publish(request, end)
            if index is not None:
                first = index if output.firsts is None else output.firsts[index]
                outputs.append(self._take(request, output, first, now, plan.drafts.get(row)))
            self._preemption.landed(request, now)
        return outputs

    def measured(self, plan: StepPlan, seconds: float) -> None:
        """Take in how long the device took for a step."""
        num_generation = len(plan.requests) - plan.num_context
        self._budget.measured(plan.num_tokens - num_generation, num_generation, seconds)

    def fail(self, plan: StepPlan, error: EnginewrightError, now: float) -> list[TokenOutput]:
        """End the requests of a step that failed; all others go on."""
        outputs: list[TokenOutput] = []
        self._flights -= 1
        self._drafts_in_flight = False
        for number in plan.requests:
            request = self._running.landed(number)
            if request is not None:
                outputs.append(self._end_with(request, error, now))
        return outputs

    def fail_request(self, number: int, error: EnginewrightError, now: float) -> list[TokenOutput]:
        """End one running request, if it has not ended yet; all others go on."""
        request = self.running.get(number)
        return [] if request is None else [self._end_with(request, error, now)]

    def expire(self, now: float) -> list[TokenOutput]:
        """End the requests that are out of time."""
        expired = self._deadlines.expired(now)
        return [self._end_with(request, error, now) for request, error in expired]

    def abort(self, request_id: str, now: float) -> TokenOutput | None:
        """End a request wherever it stands; None if it is unknown or has ended already."""
        request = self._by_id.get(request_id)
        if request is None:
            return None
        self._end(request, RequestStatus.CANCELLED, now)
        return TokenOutput(request_id, finish_reason="cancelled")

    def abort_all(self, now: float) -> list[TokenOutput]:
        """End every request."""
        outputs = [self.abort(request_id, now) for request_id in list(self._by_id)]
        return [output for output in outputs if output is not None]

    def check(self) -> None:
        """Recompute the books; raise BooksError if anything is lost, doubled or promised twice."""
        waiting, running = self._waiting.check(), self._running.check()
        if {**waiting, **running} != self._by_id or waiting.keys() & running.keys():
            raise BooksError("a request that is known by id neither waits nor runs, or does both")
        holders = [*running.values(), *self._running.landing.values()]
        self._cache.check(holders, waiting.values())
        if not self._policy.pauses and self._policy.room(running.values(), self._cache) < 0:
            raise BooksError("more blocks are promised than there are")

    def _chunk(self, context: list[Request], budget: int, num_generation: int) -> list[int]:
        """Return how many tokens each request that reads known tokens computes now."""
        if not context:
            return []
        missing = [len(request.tokens) - request.computed_tokens for request in context]
        if self._policy.pauses:
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
        copies: list[tuple[int, int]],
        budget: int,
        now: float,
    ) -> None:
        """Start waiting requests; append their rows, and the blocks to copy before the step."""
        left = budget

        def start(request: Request) -> int:
            nonlocal left
            if request.started < 0:
                self._stats.queued(now - request.arrived)
                self._log.started(now - request.arrived)
            copy = self._cache.start(request)
            self._waiting.start(request)
            self._running.start(request, now)
            if copy is not None:
                copies.append(copy)
            count = min(left, len(request.tokens) - request.computed_tokens)
            count = self._with_rows(request, count)
            rows.append((request, count))
            left -= count
            return count

        self._admission.admit(budget, start)

    def _schedule_stuck(self, now: float) -> StepPlan | None:
        """Return None for a step without work; if blocks are what is missing, the newest pauses."""
        if not self._by_id or self._flights:
            return None
        if self._policy.pauses and len(self.running) > 1:
            self._preemption.pause_newest(now)
            return self.schedule(now)
        raise AssertionError("nothing runs and nobody can start")

    def _take(
        self,
        request: Request,
        output: StepOutput,
        index: int,
        now: float,
        drafts: list[int] | None,
    ) -> TokenOutput:
        """Append a request's next tokens; end it if they have the last."""
        request.pending -= 1
        if output.tokens[index] < 0:
            error = StepFailedError(
                "The model's output for this request is not a number, or its constraints leave no "
                "token; other requests are not affected."
            )
            return self._end_with(request, error, now)
        news = take_tokens(request, output, index, now, drafts)
        if drafts is not None:
            self._settle(request)
        if news.cached_tokens:
            self._stats.cached_tokens += news.cached_tokens
        if news.queue_seconds is not None:
            self._stats.first_token(request)
        if news.finish_reason is not None:
            self._stats.finish_reasons[news.finish_reason] += 1
            self._end(request, RequestStatus.FINISHED, now)
        return news

    def _settle(self, request: Request) -> None:
        """Forget the KV of drafts that were wrong, and publish that of the others."""
        request.computed_tokens = len(request.tokens) - 1
        self._cache.shrink(request, request.computed_tokens)
        self._cache.publish(request, request.computed_tokens)

    def _affordable(
        self, generation: list[Request], drafts: Mapping[int, list[int]]
    ) -> Mapping[int, list[int]]:
        """Return the drafts of those that go on; none if blocks are short.

        Where nobody pauses, the blocks up to the longest answer are promised, so they are there.
        """
        if not drafts:
            return drafts
        drafts = {one.number: drafts[one.number] for one in generation if one.number in drafts}
        if self._policy.pauses:
            needed = sum(
                self._cache.missing_blocks(
                    one, one.computed_tokens + 1 + len(drafts.get(one.number, ()))
                )
                for one in generation
            )
            if needed > self._cache.num_available:
                return _NO_DRAFTS
        return drafts

    def _end_with(self, request: Request, error: EnginewrightError, now: float) -> TokenOutput:
        self._end(request, RequestStatus.FAILED, now)
        return TokenOutput(request.request_id, finish_reason="error", error=error_info(error))

    def _end(self, request: Request, status: RequestStatus, now: float) -> None:
        """Move a request to its last state and give back what it holds."""
        if request.status is RequestStatus.WAITING:
            self._waiting.remove(request)
            self._cache.dequeue(request)
            request.move(status, now)
        else:
            if request.params.pin and status is RequestStatus.FINISHED:
                self._cache.pin(request)
            request.move(status, now)
            self._running.end(request)
            self._waiting.ended(request)
        del self._by_id[request.request_id]
        self._log.ended(request)
        self._stats.end(request)


def _is_served(context: list[Request], chunks: list[int]) -> bool:
    """Return whether nobody who reads a prompt lacks tokens of the step, so that others may start.

    A prompt whose log-probabilities are wanted lacks logit rows, which others need not wait for.
    """
    return all(
        count == len(request.tokens) - request.computed_tokens
        or request.params.prompt_logprobs is not None
        for request, count in zip(context, chunks, strict=True)
    )
