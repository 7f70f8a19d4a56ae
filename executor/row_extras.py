"""What a logit row may need beyond one number a field: history, bias, bans, a grammar's mask."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..runtime.errors import RequestError
from ..runtime.session import Float32Array, Int32Array
from .bans import Bans, has_bans
from .request import Request
from .sampling import TokenParams

Uint32Array = npt.NDArray[np.uint32]

NO_INTS = np.zeros(0, np.int32)
NO_FLOATS = np.zeros(0, np.float32)
_FORCE = np.full(1, 1e30, np.float32)  # above every logit, and finite


class _History:
    """All tokens of a sequence, grown as they come."""

    def __init__(self) -> None:
        self._tokens = np.zeros(256, np.int32)
        self._length = 0

    def of(self, tokens: list[int]) -> Int32Array:
        if len(tokens) > len(self._tokens):
            grown = np.zeros(2 * len(tokens), np.int32)
            grown[: self._length] = self._tokens[: self._length]
            self._tokens = grown
        self._tokens[self._length : len(tokens)] = tokens[self._length :]
        self._length = len(tokens)
        return self._tokens[: self._length]


class Extras:
    """The extras of one request; every answer is about its tokens and then `ahead`, its drafts."""

    def __init__(self, request: Request) -> None:
        params, grammar = request.params, request.grammar
        stops = params.eos_token_ids + params.stop_token_ids
        self.grammar = grammar
        self._history = _History() if _has_penalties(params) else None
        self._bans = Bans(params) if has_bans(params) else None
        self._min_tokens = params.min_tokens
        # A grammar's mask knows whether anything is left besides a stop; a bias does not.
        self._early = () if grammar is None else stops
        self._never = () if grammar is None else request.ignored_eos
        self._bias = _bias_arrays(params.logit_bias)
        forbidden = dict.fromkeys(stops if grammar is None else (), -np.inf)
        self._early_bias = _bias_arrays({**params.logit_bias, **forbidden})

    def history(self, request: Request, ahead: list[int]) -> Int32Array:
        """Return the tokens that penalties look at; none without penalties."""
        if self._history is None:
            return NO_INTS
        known = self._history.of(request.tokens)
        return np.concatenate((known, np.array(ahead, np.int32))) if ahead else known

    def bias(self, request: Request, ahead: list[int]) -> tuple[Int32Array, Float32Array]:
        """Return the bias of the next token; before `min_tokens` no stop token is possible."""
        ids, values = self._early_bias if self._is_early(request, ahead) else self._bias
        banned = [] if self._bans is None else self._bans.after(request.tokens, ahead)
        if not banned:
            return ids, values
        forbidden = np.full(len(banned), -np.inf, np.float32)
        return (
            np.concatenate((ids, np.array(banned, np.int32))),
            np.concatenate((values, forbidden)),
        )

    def fill(self, mask: Uint32Array, request: Request, ahead: list[int]) -> None:
        """Write the grammar's mask of the next token; raises RequestError."""
        assert self.grammar is not None
        held_back = self._never + (self._early if self._is_early(request, ahead) else ())
        answer = request.tokens[request.prompt_tokens :] + ahead
        self.grammar.fill(mask, answer, held_back)

    def _is_early(self, request: Request, ahead: list[int]) -> bool:
        return len(request.tokens) + len(ahead) - request.prompt_tokens < self._min_tokens


@dataclass(slots=True)
class ExtraArrays:
    """The ragged part of runtime.session.Sampling, and the requests whose grammar gave up."""

    history_starts: Int32Array
    history: Int32Array
    prompt_lengths: Int32Array
    bias_starts: Int32Array
    bias_ids: Int32Array
    bias_values: Float32Array
    masks: Uint32Array | None = None
    errors: dict[int, RequestError] = field(default_factory=dict[int, RequestError])


def no_extras(rows: int) -> ExtraArrays:
    """Return the arrays of rows that need nothing."""
    starts = np.zeros(rows + 1, np.int32)
    return ExtraArrays(starts, NO_INTS, starts[:rows], starts, NO_INTS, NO_FLOATS)


def pack_extras(
    requests: list[Request | None],
    extras: list[Extras | None],
    ahead: list[list[int]],
    forced: list[int],
    mask_words: int,
) -> ExtraArrays:
    """Return the extras of logit rows; the lists have one entry a row.

    A row whose `forced` is a token reports on that token and takes no other notice of its request.
    """
    histories: list[Int32Array] = [NO_INTS]
    ids: list[Int32Array] = [NO_INTS]
    values: list[Float32Array] = [NO_FLOATS]
    history_starts, bias_starts, prompt_lengths = [0], [0], [0] * len(requests)
    guided: list[int] = []
    for row, (request, extra) in enumerate(zip(requests, extras, strict=True)):
        history = bias_ids = NO_INTS
        if forced[row] >= 0:
            bias_ids = np.array([forced[row]], np.int32)
            values.append(_FORCE)
        elif request is not None and extra is not None:
            history = extra.history(request, ahead[row])
            prompt_lengths[row] = request.prompt_tokens if len(history) else 0
            bias_ids, bias_values = extra.bias(request, ahead[row])
            values.append(bias_values)
            if extra.grammar is not None:
                guided.append(row)
        histories.append(history)
        ids.append(bias_ids)
        history_starts.append(history_starts[-1] + len(history))
        bias_starts.append(bias_starts[-1] + len(bias_ids))
    result = ExtraArrays(
        np.array(history_starts, np.int32),
        np.concatenate(histories),
        np.array(prompt_lengths, np.int32),
        np.array(bias_starts, np.int32),
        np.concatenate(ids),
        np.concatenate(values),
    )
    if guided:
        result.masks = np.full((len(requests), mask_words), 0xFFFFFFFF, np.uint32)
        for row in guided:
            request, extra = requests[row], extras[row]
            assert request is not None
            assert extra is not None
            try:
                extra.fill(result.masks[row], request, ahead[row])
            except RequestError as error:
                result.errors[request.number] = error
                result.masks[row] = 0xFFFFFFFF
    return result


def needs_extras(request: Request) -> bool:
    """Whether a request needs more than one number a field."""
    params = request.params
    plain = params.min_tokens == 0 and not params.logit_bias and not has_bans(params)
    return not plain or _has_penalties(params) or request.grammar is not None


def _has_penalties(params: TokenParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
    )


def _bias_arrays(bias: dict[int, float]) -> tuple[Int32Array, Float32Array]:
    return np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)
