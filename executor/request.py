"""One request: its tokens, its blocks, its state and the times at which the state changed."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..runtime.errors import ContextLengthError, RequestError
from .sampling import TokenParams

if TYPE_CHECKING:
    from .guided import Grammar
    from .logits_processors import Processors
    from .messages import TokenLogprob


class RequestStatus(enum.Enum):
    """Where a request stands; each ends in exactly one of the last four."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"


class WaitCause(enum.Enum):
    """Why a waiting request does not run."""

    ORDER = "order"  # others are before it
    SLOTS = "slots"  # as many sequences run as may
    TOKENS = "tokens"  # the step has no tokens left
    BLOCKS = "blocks"  # too few KV blocks are available
    PREFIX = "prefix"  # another request computes what it would compute
    BATCH = "batch"  # the static batch has not ended


_NEXT = {
    RequestStatus.WAITING: {
        RequestStatus.RUNNING,
        RequestStatus.CANCELLED,
        RequestStatus.REJECTED,
        RequestStatus.FAILED,
    },
    RequestStatus.RUNNING: {
        RequestStatus.WAITING,
        RequestStatus.FINISHED,
        RequestStatus.CANCELLED,
        RequestStatus.FAILED,
    },
}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request must fit into."""

    max_seq_len: int  # prompt and answer of one sequence
    pool_tokens: int  # tokens that the whole KV pool holds
    vocab_size: int


class Request:
    """A sequence that is to be computed. Times are seconds on the caller's clock."""

    __slots__ = (
        "arrived",
        "block_keys",
        "blocks",
        "cached_tokens",
        "charge",
        "computed_tokens",
        "ended",
        "first_token",
        "flights",
        "grammar",
        "ignored_eos",
        "is_pausing",
        "landed_tokens",
        "last_token",
        "max_new_tokens",
        "node",
        "number",
        "overtaken",
        "params",
        "pauses",
        "pending",
        "pending_row",
        "prefix_waits",
        "processors",
        "prompt_logprobs",
        "prompt_tokens",
        "request_id",
        "slot",
        "started",
        "status",
        "stop_ids",
        "tenant",
        "tokens",
        "waits_for",
    )

    def __init__(
        self,
        number: int,
        request_id: str,
        prompt_token_ids: list[int],
        params: TokenParams,
        limits: RequestLimits,
        arrived: float,
        grammar: Grammar | None = None,
        processors: Processors | None = None,
    ) -> None:
        """Raise RequestError or ContextLengthError if the request could never run."""
        self.number = number  # unique for the life of the executor, unlike the id
        self.request_id = request_id
        self.params = params
        self.prompt_tokens = len(prompt_token_ids)
        self.max_new_tokens = _room_for_answer(prompt_token_ids, params, limits)
        self.tokens = list(prompt_token_ids)  # prompt, then answer
        self.computed_tokens = 0  # tokens whose KV is written, or will be by a plan in flight
        self.landed_tokens = 0  # of those, tokens whose KV is written by now
        self.cached_tokens = 0  # prompt tokens whose KV was found rather than computed
        self.blocks: list[int] = []  # KV blocks in order of position
        self.slot = -1  # row of the step's persistent arrays while running
        self.grammar = grammar
        self.processors = processors
        # A grammar ends with the end of text, also where that is to be ignored otherwise.
        ends = () if grammar is None else grammar.eos_token_ids
        self.ignored_eos = tuple(end for end in ends if end not in params.eos_token_ids)
        self.stop_ids = frozenset(params.eos_token_ids + params.stop_token_ids + self.ignored_eos)
        self.prompt_logprobs: list[TokenLogprob] = []  # of its second token and those after it
        self.status = RequestStatus.WAITING
        self.node: Any = None  # last node of the prefix tree that its tokens lead through
        self.block_keys: list[bytes] = []  # the tree's keys of its first full blocks
        self.flights = 0  # steps in flight that compute tokens of it
        self.pending = 0  # sampled tokens that are not known yet, one a step in flight
        self.pending_row = 0  # the row among the sampled ones of the step before
        self.pauses = 0
        self.is_pausing = False  # it pauses once no step in flight has it
        self.tenant = params.tenant or params.cache_salt or ""
        self.charge = 0  # tokens that its tenant has been charged
        self.overtaken = 0  # requests that started although this one was before them
        self.prefix_waits = 0  # steps that it let pass for another's prefix
        self.waits_for = WaitCause.ORDER
        self.arrived = arrived
        self.started = self.first_token = self.last_token = self.ended = -1.0

    @property
    def max_total_tokens(self) -> int:
        """Prompt and the longest answer."""
        return self.prompt_tokens + self.max_new_tokens

    @property
    def reusable_tokens(self) -> int:
        """Leading tokens that need not be computed if their KV is found; the last one always is."""
        return 0 if self.params.prompt_logprobs is not None else len(self.tokens) - 1

    @property
    def new_tokens(self) -> int:
        """Sampled tokens, with those in flight."""
        return len(self.tokens) + self.pending - self.prompt_tokens

    def move(self, status: RequestStatus, now: float) -> None:
        """Change the state and stamp the time; an impossible change is a bug and raises."""
        assert status in _NEXT.get(self.status, ()), f"{self.status} cannot become {status}"
        self.status = status
        if status is RequestStatus.RUNNING:
            if self.started < 0:
                self.started = now
        elif status is not RequestStatus.WAITING:
            self.ended = now


def _room_for_answer(prompt: list[int], params: TokenParams, limits: RequestLimits) -> int:
    """Return how many tokens may be sampled; raise if the prompt or the parameters are unusable."""
    if not prompt:
        raise RequestError("The prompt is empty; it needs at least one token.", "prompt")
    vocab = limits.vocab_size
    if min(prompt) < 0 or max(prompt) >= vocab:
        bad = next(token for token in prompt if not 0 <= token < vocab)
        message = f"The prompt holds token id {bad}, but the vocabulary has ids 0 to {vocab - 1}."
        raise RequestError(message, "prompt")
    for token in params.logit_bias:
        if not 0 <= token < vocab:
            message = f"logit_bias names token id {token}; the vocabulary ends at {vocab - 1}."
            raise RequestError(message, "logit_bias")
    wanted = params.max_tokens
    if wanted is not None and wanted < 1:
        raise RequestError(f"max_tokens is {wanted}, but it must be at least 1.", "max_tokens")
    room = limits.max_seq_len - len(prompt)
    if room < 1:
        raise ContextLengthError(
            f"The prompt has {len(prompt)} tokens, but this engine takes at most "
            f"{limits.max_seq_len - 1} ({limits.max_seq_len} with the answer); shorten it.",
            "prompt",
        )
    pool_room = limits.pool_tokens - len(prompt)
    if wanted is None:
        wanted = max(min(room, pool_room), 1)
    wanted = min(wanted, room)
    if wanted > pool_room:
        raise ContextLengthError(
            f"The prompt has {len(prompt)} tokens and max_tokens is {wanted}, but the KV cache "
            f"holds {limits.pool_tokens} tokens in all; ask for less or raise --kv-cache-memory.",
            "max_tokens" if pool_room > 0 else "prompt",
        )
    return wanted
