"""One request: its tokens, its blocks, its state and the times at which the state changed."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..runtime.errors import ContextLengthError, RequestError
from .sampling import TokenParams


class RequestStatus(enum.Enum):
    """Where a request stands; each ends in exactly one of the last four."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"


_NEXT = {
    RequestStatus.WAITING: {
        RequestStatus.RUNNING,
        RequestStatus.CANCELLED,
        RequestStatus.REJECTED,
        RequestStatus.FAILED,
    },
    RequestStatus.RUNNING: {
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
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "ended",
        "first_token",
        "max_new_tokens",
        "number",
        "params",
        "prompt_tokens",
        "request_id",
        "slot",
        "started",
        "status",
        "stop_ids",
        "tokens",
    )

    def __init__(
        self,
        number: int,
        request_id: str,
        prompt_token_ids: list[int],
        params: TokenParams,
        limits: RequestLimits,
        arrived: float,
    ) -> None:
        """Raise RequestError or ContextLengthError if the request could never run."""
        self.number = number  # unique for the life of the executor, unlike the id
        self.request_id = request_id
        self.params = params
        self.prompt_tokens = len(prompt_token_ids)
        self.max_new_tokens = _room_for_answer(prompt_token_ids, params, limits)
        self.tokens = list(prompt_token_ids)  # prompt, then answer
        self.computed_tokens = 0  # tokens whose KV is written, or will be by a plan in flight
        self.cached_tokens = 0  # prompt tokens whose KV was found rather than computed
        self.blocks: list[int] = []  # KV blocks in order of position
        self.slot = -1  # row of the step's persistent arrays while running
        self.stop_ids = frozenset(params.eos_token_ids + params.stop_token_ids)
        self.status = RequestStatus.WAITING
        self.arrived = arrived
        self.started = self.first_token = self.ended = -1.0

    @property
    def max_total_tokens(self) -> int:
        """Prompt and the longest answer."""
        return self.prompt_tokens + self.max_new_tokens

    def move(self, status: RequestStatus, now: float) -> None:
        """Change the state and stamp the time; an impossible change is a bug and raises."""
        assert status in _NEXT.get(self.status, ()), f"{self.status} cannot become {status}"
        self.status = status
        if status is RequestStatus.RUNNING:
            self.started = now
        else:
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
