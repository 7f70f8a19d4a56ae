"""The scheduler: which tokens of which requests the next step computes, and what came of it.

Deals in ints and lists; times are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..runtime.errors import EnginewrightError, OverloadedError, RequestError
from .kv_blocks import BooksError, KvBlocks
from .messages import FinishReason, TokenLogprob, TokenOutput, error_info
from .plan import StepOutput, StepPlan
from .policies import CapacityPolicy
from .request import Request, RequestLimits, RequestStatus
from .sampling import TokenParams
from .stats import ExecutorStats


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What steps, sequences and the queue may hold."""

    max_batch_size: int  # sequences in a step
    max_num_tokens: int  # tokens in a step
    max_seq_len: int  # prompt and answer of one sequence
    vocab_size: int
    max_queue: int  # requests that wait


class Scheduler:
    """Owns the waiting and the running requests; every request ends here, exactly once."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: KvBlocks,
        policy: CapacityPolicy,
        stats: ExecutorStats,
    ) -> None:
        self._max_num_tokens = limits.max_num_tokens
        self._max_queue = limits.max_queue
        self._limits = RequestLimits(
            limits.max_seq_len, blocks.num_blocks * blocks.block_tokens, limits.vocab_size
        )
        # A step has a token for every running sequence, so that none of them ever starves.
        self._num_slots = min(limits.max_batch_size, limits.max_num_tokens)
        self._free_slots = list(range(self._num_slots - 1, -1, -1))
        self._blocks = blocks
        self._policy = policy
        self._stats = stats
        self._waiting: dict[int, Request] = {}  # by number, in order of arrival
        self._running: dict[int, Request] = {}  # by number, in order of start
        self._by_id: dict[str, Request] = {}
        self._submitted = 0
        self._step = 0

    @property
    def running(self) -> Mapping[int, Request]:
        """The requests that have a slot and blocks, by number, in order of start."""
        return self._running

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._running and not self._waiting

    def submit(self, request_id: str, prompt: list[int], params: TokenParams, now: float) -> None:
        """Put a request into the queue.

        Raises RequestError, ContextLengthError or OverloadedError if it can never run or may not
        wait; then it does not exist.
        """
        self._stats.submitted += 1
        try:
            if request_id in self._by_id:
                message = f"Request id {request_id!r} is in use; choose another."
                raise RequestError(message, "request_id")
            if len(self._waiting) >= self._max_queue:
                raise OverloadedError(
                    f"The queue holds {len(self._waiting)} requests, the most it may; "
                    "try again later."
                )
            request = Request(self._submitted, request_id, prompt, params, self._limits, now)
        except EnginewrightError as error:
            self._stats.rejected(error.code)
            raise
        self._submitted += 1
        self._waiting[request.number] = request
        self._by_id[request_id] = request

    def schedule(self, now: float) -> StepPlan | None:
        """Plan a step: a token for each running sequence, then prompts; None if there is none."""
        context: list[Request] = []
        generation: list[Request] = []
        for request in self._running.values():
            computed = request.computed_tokens
            if computed >= request.prompt_tokens and len(request.tokens) == computed + 1:
                generation.append(request)
            else:
                context.append(request)
        budget = self._max_num_tokens - len(generation)
        chunks: list[tuple[Request, int]] = []
        for request in context:
            if budget == 0:
                break
            count = min(budget, len(request.tokens) - request.computed_tokens)
            chunks.append((request, count))
            budget -= count
        num_started = len(chunks)
        if self._waiting and budget and self._free_slots:
            self._admit(chunks, budget, now)
        if not chunks and not generation:
            assert not self._waiting, "the next request cannot start although nothing runs"
            return None
        plan = StepPlan(
            step=self._step,
            requests=[],
            slots=[],
            starts=[],
            counts=[],
            num_context=len(chunks),
            sample_rows=[],
            admitted=list(range(num_started, len(chunks))),
            new_blocks=[],
            num_tokens=sum(count for _, count in chunks) + len(generation),
        )
        for request, count in chunks:
            self._add_row(plan, request, count)
        for request in generation:
            self._add_row(plan, request, 1)
        self._step += 1
        return plan

    def update(self, plan: StepPlan, output: StepOutput, now: float) -> list[TokenOutput]:
        """Take in what a step gave; return the news of its requests.

        Requests that have ended since the step was planned are passed over.
        """
        outputs: list[TokenOutput] = []
        running, numbers = self._running, plan.requests
        for index, row in enumerate(plan.sample_rows):
            request = running.get(numbers[row])
            if request is None:
                continue
            token = output.tokens[index]
            request.tokens.append(token)
            new_tokens = len(request.tokens) - request.prompt_tokens
            finish: FinishReason | None = None
            stop_reason = None
            if token in request.stop_ids and new_tokens >= request.params.min_tokens:
                finish = "stop"
                if token not in request.params.eos_token_ids:
                    stop_reason = token
            elif new_tokens >= request.max_new_tokens:
                finish = "length"
            logprobs = None
            if request.params.num_logprobs >= 0:
                logprobs = [_logprob(output, index, request.params.num_logprobs)]
            if new_tokens == 1:
                outputs.append(self._first(request, token, logprobs, finish, stop_reason, now))
            else:
                outputs.append(
                    TokenOutput(request.request_id, [token], logprobs, finish, stop_reason)
                )
            if finish is not None:
                self._stats.finish_reasons[finish] += 1
                self._end(request, RequestStatus.FINISHED, now)
        return outputs

    def fail(self, plan: StepPlan, error: EnginewrightError, now: float) -> list[TokenOutput]:
        """End the requests of a step that failed; all others go on."""
        outputs: list[TokenOutput] = []
        info = error_info(error)
        for number in plan.requests:
            request = self._running.get(number)
            if request is not None:
                self._end(request, RequestStatus.FAILED, now)
                outputs.append(TokenOutput(request.request_id, finish_reason="error", error=info))
        return outputs

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

    def gauges(self) -> dict[str, int]:
        """Return how full queue, batch and KV pool are at this moment."""
        blocks = self._blocks
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "num_blocks": blocks.num_blocks,
            "used_blocks": blocks.num_blocks - blocks.num_free,
            "free_blocks": blocks.num_free,
            "block_tokens": blocks.block_tokens,
            "kv_tokens": sum(request.computed_tokens for request in self._running.values()),
        }

    def check(self) -> None:
        """Recompute the books; raise BooksError if anything is lost, doubled or promised twice."""
        running = list(self._running.values())
        self._blocks.check(request.blocks for request in running)
        slots = sorted(self._free_slots + [request.slot for request in running])
        if slots != list(range(self._num_slots)):
            raise BooksError("a slot is lost or in two hands")
        live = {**self._waiting, **self._running}
        if {r.request_id: r for r in live.values()} != self._by_id:
            raise BooksError("a request is known by id but neither waits nor runs, or otherwise")
        if len(live) != len(self._waiting) + len(running):
            raise BooksError("a request both waits and runs")
        for request in running:
            if len(request.blocks) != self._blocks.blocks_for(request.computed_tokens):
                raise BooksError(f"request {request.request_id} has too many or too few blocks")
            if request.status is not RequestStatus.RUNNING:
                raise BooksError(f"request {request.request_id} runs but is {request.status}")
        if any(r.blocks or r.status is not RequestStatus.WAITING for r in self._waiting.values()):
            raise BooksError("a waiting request has blocks or another state")
        if self._policy.room(running, self._blocks) < 0:
            raise BooksError("more blocks are promised than there are")

    def _admit(self, chunks: list[tuple[Request, int]], budget: int, now: float) -> None:
        """Start waiting requests in their order while tokens, slots and blocks last."""
        room = self._policy.room(self._running.values(), self._blocks)
        while self._waiting and budget and self._free_slots:
            request = next(iter(self._waiting.values()))
            room -= self._policy.claim(request, self._blocks)
            if room < 0:
                return
            del self._waiting[request.number]
            self._running[request.number] = request
            request.slot = self._free_slots.pop()
            request.move(RequestStatus.RUNNING, now)
            self._stats.started(request)
            count = min(budget, len(request.tokens))
            chunks.append((request, count))
            budget -= count

    def _add_row(self, plan: StepPlan, request: Request, count: int) -> None:
        """Append a row to a plan, with the blocks that its tokens need."""
        start = request.computed_tokens
        end = start + count
        held = len(request.blocks)
        if end > held * self._blocks.block_tokens:
            new = self._blocks.allocate(self._blocks.blocks_for(end) - held)
            request.blocks += new
            plan.new_blocks.append((request.slot, held, new))
        if end == len(request.tokens):
            plan.sample_rows.append(len(plan.requests))
        plan.requests.append(request.number)
        plan.slots.append(request.slot)
        plan.starts.append(start)
        plan.counts.append(count)
        request.computed_tokens = end

    def _first(
        self,
        request: Request,
        token: int,
        logprobs: list[TokenLogprob] | None,
        finish: FinishReason | None,
        stop_reason: int | None,
        now: float,
    ) -> TokenOutput:
        request.first_token = now
        self._stats.first_token(request)
        return TokenOutput(
            request.request_id,
            [token],
            logprobs,
            finish,
            stop_reason,
            None,
            request.cached_tokens,
            request.started - request.arrived,
            now - request.started,
        )

    def _end(self, request: Request, status: RequestStatus, now: float) -> None:
        """Move a request to its last state and give back what it holds."""
        request.move(status, now)
        del self._by_id[request.request_id]
        if self._waiting.pop(request.number, None) is None:
            del self._running[request.number]
            self._free_slots.append(request.slot)
            self._blocks.free(request.blocks)
        self._stats.end(request)


def _logprob(output: StepOutput, index: int, count: int) -> TokenLogprob:
    assert output.logprobs and output.top_ids is not None and output.top_logprobs is not None
    top = list(zip(output.top_ids[index][:count], output.top_logprobs[index][:count], strict=True))
    return TokenLogprob(output.tokens[index], output.logprobs[index], top)
