"""The requests that run: each has a slot, and the KV blocks of its computed tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .kv_blocks import BooksError
from .kv_cache import KvCache
from .plan import StepPlan
from .request import Request, RequestStatus


class RunningSet:
    """Owns the slots, and holds back the blocks that steps in flight still write to."""

    def __init__(self, num_slots: int, cache: KvCache) -> None:
        self._num_slots = num_slots
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._cache, self._block_tokens = cache, cache.block_tokens
        self._requests: dict[int, Request] = {}  # by number, in order of start
        self.num_processed = 0  # running requests that have logits processors
        self._landing: dict[int, Request] = {}  # ended, but in a step in flight

    @property
    def requests(self) -> Mapping[int, Request]:
        """The running requests by number, in order of start."""
        return self._requests

    @property
    def landing(self) -> Mapping[int, Request]:
        """Ended requests whose blocks are held back until their last step is done."""
        return self._landing

    @property
    def num_free_slots(self) -> int:
        """Slots that nobody has."""
        return len(self._free_slots)

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free_slots)

    def newest(self) -> Request:
        """Return the request that started last, of those that do not pause already."""
        return next(one for one in reversed(self._requests.values()) if not one.is_pausing)

    def start(self, request: Request, now: float) -> None:
        """Give a request a slot."""
        request.move(RequestStatus.RUNNING, now)
        request.slot = self._free_slots.pop()
        self._requests[request.number] = request
        self.num_processed += request.processors is not None

    def end(self, request: Request) -> None:
        """Take back a request's slot, and its blocks when no step in flight has it."""
        del self._requests[request.number]
        self.num_processed -= request.processors is not None
        self._free_slots.append(request.slot)
        request.slot = -1
        if request.flights:
            self._landing[request.number] = request
        else:
            self._cache.release(request)

    def landed(self, number: int) -> Request | None:
        """Count one step less in flight for a request; return it unless it has ended."""
        request = self._requests.get(number)
        if request is not None:
            request.flights -= 1
            return request
        ended = self._landing[number]
        ended.flights -= 1
        if not ended.flights:
            del self._landing[number]
            self._cache.release(ended)
        return None

    def split(self) -> tuple[list[Request], list[Request]]:
        """Return who reads tokens that are known, and who has its newest token to compute.

        Left out are those that pause, and those whose last token is in flight.
        """
        context: list[Request] = []
        generation: list[Request] = []
        for request in self._requests.values():
            if request.is_pausing:
                continue
            computed, prompt = request.computed_tokens, request.prompt_tokens
            known = len(request.tokens) + request.pending
            if computed < prompt or known - computed > 1:
                context.append(request)
            elif known - prompt < request.max_new_tokens:
                generation.append(request)
        return context, generation

    def advance(
        self, plan: StepPlan, request: Request, count: int, drafts: Sequence[int] = ()
    ) -> None:
        """Append a row of `count` tokens and then drafts to a plan, with the blocks they need."""
        start = request.computed_tokens
        end = last = start + count  # `last` is the end of the tokens that are no drafts
        held, known = len(request.blocks), len(request.tokens)
        row = len(plan.requests)
        if drafts:
            plan.drafts[row] = list(drafts)
            end += len(drafts)
        if end > held * self._block_tokens:
            plan.new_blocks.append((request.slot, held, self._cache.grow(request, end)))
        if last > known:
            plan.device_tokens[row] = request.pending_row
        if request.params.prompt_logprobs is not None:
            self._judge_prompt(plan, request, row, last)
        if last == known + request.pending:
            request.pending += 1
            request.pending_row = len(plan.sample_rows)
            plan.sample_rows.append(row)
        plan.requests.append(request.number)
        plan.slots.append(request.slot)
        plan.starts.append(start)
        plan.counts.append(end - start)
        request.computed_tokens = end
        request.flights += 1

    def _judge_prompt(self, plan: StepPlan, request: Request, row: int, end: int) -> None:
        """Ask for the log-probabilities of prompt tokens that have none yet."""
        known = len(request.prompt_logprobs)
        judged = min(end, request.prompt_tokens - 1) - max(request.computed_tokens, known)
        if judged > 0:
            plan.prompt_rows[row] = judged

    def check(self) -> dict[str, Request]:
        """Return the requests by id; raise BooksError if slots or blocks do not balance."""
        requests = list(self._requests.values())
        slots = sorted(self._free_slots + [request.slot for request in requests])
        if slots != list(range(self._num_slots)):
            raise BooksError("a slot is lost or in two hands")
        for request in requests:
            if len(request.blocks) != self._cache.blocks_for(request.computed_tokens):
                raise BooksError(f"request {request.request_id} has too many or too few blocks")
            if request.status is not RequestStatus.RUNNING:
                raise BooksError(f"request {request.request_id} runs but is {request.status}")
        if any(not request.flights for request in self._landing.values()):
            raise BooksError("an ended request keeps its blocks without need")
        return {request.request_id: request for request in requests}
