"""The scheduler: which tokens of which requests the next step computes, and what came of it.

Deals in ints and lists; times are passed in.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..runtime.errors import EnginewrightError, RequestError, StepFailedError
from .answers import take_prompt_logprobs, take_tokens
from .deadlines import Deadlines
from .guided import Grammar
from .iterations import IterationLog
from .kv_blocks import BooksError
from .kv_cache import KvCache
from .limits import SchedulerLimits
from .messages import TokenOutput, describe_error, error_info
from .plan import StepOutput, StepPlan
from .planner import NO_DRAFTS, Planner
from .policies import make_policy
from .preemption import Preemption
from .report import Report
from .request import Request, RequestLimits, RequestStatus
from .running import RunningSet
from .sampling import TokenParams
from .stats import ExecutorStats
from .waiting import WaitingQueue

if TYPE_CHECKING:
    from .logits_processors import Processors


class Scheduler:
    """Owns the waiting and the running requests; every request ends here, exactly once.

    A step may be planned while the one before is in flight: `schedule`, `schedule`, `update` of the
    first, and so on. What a request holds is given back when no step in flight has it.
    """

    def __init__(self, limits: SchedulerLimits, cache: KvCache, stats: ExecutorStats) -> None:
        self._limits = RequestLimits(
            limits.max_seq_len, cache.num_blocks * cache.block_tokens, limits.vocab_size
        )
        # A step has a token for every running sequence, so that none of them ever starves.
        num_slots = min(limits.max_batch_size, limits.max_num_tokens)
        self._waiting = WaitingQueue(
            limits.max_queue, limits.max_queue_tokens, limits.tenant_weights
        )
        self._running = RunningSet(num_slots, cache)
        self._cache, self._block_tokens = cache, cache.block_tokens
        self._policy = make_policy(limits.capacity_policy)
        self._preemption = Preemption(self._waiting, self._running, cache, stats)
        self._log = IterationLog(cache, num_slots)
        self._planner = Planner(
            limits,
            self._waiting,
            self._running,
            cache,
            self._policy,
            self._preemption,
            stats,
            self._log,
        )
        self.report = Report(self._waiting, self._running, cache, stats, self._log)
        self._deadlines = Deadlines()
        self._stats = stats
        self._by_id: dict[str, Request] = {}
        self._submitted = 0
        self._step = 0
        self._flights: set[int] = set()  # steps that were planned and have not come back
        self._awaited: int | None = None  # a step that must land before the next is planned

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
        processors: Processors | None = None,
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
                self._submitted,
                request_id,
                prompt,
                params,
                self._limits,
                now,
                grammar,
                processors,
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
        return ([], 0) if self._flights else self._planner.draftable()

    def schedule(self, now: float, drafts: Mapping[int, list[int]] = NO_DRAFTS) -> StepPlan | None:
        """Plan a step: a token for each running sequence, then prompts; None if there is none.

        `drafts` are tokens, by request number, that may follow those of `draftable` sequences. A
        step that has drafts, or logits processors, must be done before the next is planned.
        """
        if self._awaited is not None:
            return None
        plan = self._planner.plan(self._step, now, drafts)
        if plan is None:
            return self._schedule_stuck(now)
        if plan.drafts or plan.is_processed:
            self._awaited = plan.step
        self._step += 1
        self._flights.add(plan.step)
        return plan

    def update(self, plan: StepPlan, output: StepOutput, now: float) -> list[TokenOutput]:
        """Take in what a step gave; return the news of its requests.

        Requests that have ended since the step was planned are passed over. One whose news cannot
        be taken in ends with the reason; that is a bug, and it is that request's alone.
        """
        outputs: list[TokenOutput] = []
        samples = {row: index for index, row in enumerate(plan.sample_rows)}
        for row, request in enumerate(self._land(plan)):
            if request is None:
                self._stats.wasted_tokens += plan.counts[row]
                continue
            try:
                news = self._take_row(plan, output, row, request, samples.get(row), now)
            except Exception as error:
                traceback.print_exc()
                reason = f"The answer of the step cannot be taken in: {describe_error(error)}"
                news = self._end_with(request, StepFailedError(reason), now)
            if news is not None:
                outputs.append(news)
                self._stats.generation_tokens += len(news.token_ids)
        return outputs

    def measured(self, plan: StepPlan, seconds: float) -> None:
        """Take in how long the device took for a step."""
        self._planner.measured(plan, seconds)

    def fail(self, plan: StepPlan, error: EnginewrightError, now: float) -> list[TokenOutput]:
        """End the requests of a step that failed, be it in `update`; all others go on."""
        return [
            self._end_with(request, error, now)
            for request in self._land(plan)
            if request is not None
        ]

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

    def _land(self, plan: StepPlan) -> list[Request | None]:
        """Take a step out of the flights; return its rows' requests, None for those that ended.

        A step that has landed before counts once.
        """
        if plan.step == self._awaited:
            self._awaited = None
        if plan.step not in self._flights:
            return [self.running.get(number) for number in plan.requests]
        self._flights.remove(plan.step)
        return [self._running.landed(number) for number in plan.requests]

    def _take_row(
        self,
        plan: StepPlan,
        output: StepOutput,
        row: int,
        request: Request,
        index: int | None,
        now: float,
    ) -> TokenOutput | None:
        """Take in one row of a step, whose token is the output's at `index`."""
        end, drafts = plan.starts[row] + plan.counts[row], None
        if row in plan.prompt_rows:
            take_prompt_logprobs(request, output, row, plan.prompt_rows[row])
        if row in plan.drafts:
            drafts = plan.drafts[row]
            end -= len(drafts)
        request.landed_tokens = end
        if end // self._block_tokens > request.node.depth:
            self._cache.publish(request, end)
        news = None
        if index is not None:
            first = index if output.firsts is None else output.firsts[index]
            news = self._take(request, output, first, now, drafts)
        if request.is_pausing:
            self._preemption.landed(request, now)
        return news

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
        request.computed_tokens = request.landed_tokens = len(request.tokens) - 1
        self._cache.shrink(request, request.computed_tokens)
        self._cache.publish(request, request.computed_tokens)

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
