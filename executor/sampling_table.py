"""The sampling parameters of all slots as arrays, from which each step takes its rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..runtime.session import Float32Array, Int32Array, Sampling
from .request import Request
from .sampling import TokenParams

_NO_INTS = np.zeros(0, np.int32)
_NO_FLOATS = np.zeros(0, np.float32)


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


class _Extras:
    """What a slot needs beyond one number a field: penalties' history, bias, forbidden stops."""

    def __init__(self, params: TokenParams) -> None:
        self.history = _History() if _has_penalties(params) else None
        self._min_tokens = params.min_tokens
        self._bias = _bias_arrays(params.logit_bias)
        stops = dict.fromkeys(params.eos_token_ids + params.stop_token_ids, -np.inf)
        self._early_bias = _bias_arrays({**params.logit_bias, **stops})

    def bias(self, new_tokens: int) -> tuple[Int32Array, Float32Array]:
        """Return the bias of the next token; before `min_tokens` no stop token is possible."""
        return self._early_bias if new_tokens < self._min_tokens else self._bias


class SamplingTable:
    """One row a slot; a row is written when a request enters the slot."""

    def __init__(self, num_slots: int) -> None:
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int32)
        self._top_p = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._repetition = np.ones(num_slots, np.float32)
        self._presence = np.zeros(num_slots, np.float32)
        self._frequency = np.zeros(num_slots, np.float32)
        self._seeds = np.zeros(num_slots, np.uint64)
        self._logprobs = np.full(num_slots, -1, np.int32)
        self._plain = np.ones(num_slots, np.bool_)  # greedy and nothing else
        self._extras: list[_Extras | None] = [None] * num_slots
        self._greedy: dict[int, Sampling] = {}  # by number of rows

    def enter(self, slot: int, params: TokenParams) -> None:
        """Write a slot's row."""
        self._temperature[slot] = params.temperature
        self._top_k[slot] = params.top_k
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._repetition[slot] = params.repetition_penalty
        self._presence[slot] = params.presence_penalty
        self._frequency[slot] = params.frequency_penalty
        self._seeds[slot] = params.seed
        self._logprobs[slot] = params.num_logprobs
        special = _has_penalties(params) or params.min_tokens > 0 or bool(params.logit_bias)
        self._extras[slot] = _Extras(params) if special else None
        self._plain[slot] = not special and params.temperature == 0 and params.num_logprobs < 0

    def pack(
        self, slots: npt.NDArray[np.intp], positions: Int32Array, requests: list[Request]
    ) -> Sampling:
        """Return the rows of those slots, in that order; `positions` are of the sampled tokens."""
        rows = len(slots)
        if self._plain[slots].all():
            if rows not in self._greedy:
                self._greedy[rows] = _greedy(rows)
            return self._greedy[rows]
        special = any(self._extras[request.slot] is not None for request in requests)
        extras = self._pack_extras(requests) if special else _no_extras(rows)
        history_starts, history, prompt_lengths, bias_starts, bias_ids, bias_values = extras
        return Sampling(
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            repetition_penalty=self._repetition[slots],
            presence_penalty=self._presence[slots],
            frequency_penalty=self._frequency[slots],
            seeds=self._seeds[slots],
            positions=positions,
            num_logprobs=self._logprobs[slots],
            history_starts=history_starts,
            history=history,
            prompt_lengths=prompt_lengths,
            bias_starts=bias_starts,
            bias_ids=bias_ids,
            bias_values=bias_values,
        )

    def _pack_extras(self, requests: list[Request]) -> _ExtraArrays:
        histories: list[Int32Array] = [_NO_INTS]
        ids: list[Int32Array] = [_NO_INTS]
        values: list[Float32Array] = [_NO_FLOATS]
        history_starts, bias_starts, prompt_lengths = [0], [0], [0] * len(requests)
        for row, request in enumerate(requests):
            extras = self._extras[request.slot]
            history_size = bias_size = 0
            if extras is not None:
                if extras.history is not None:
                    histories.append(extras.history.of(request.tokens))
                    history_size = len(request.tokens)
                    prompt_lengths[row] = request.prompt_tokens
                bias = extras.bias(len(request.tokens) - request.prompt_tokens)
                ids.append(bias[0])
                values.append(bias[1])
                bias_size = len(bias[0])
            history_starts.append(history_starts[-1] + history_size)
            bias_starts.append(bias_starts[-1] + bias_size)
        return (
            np.array(history_starts, np.int32),
            np.concatenate(histories),
            np.array(prompt_lengths, np.int32),
            np.array(bias_starts, np.int32),
            np.concatenate(ids),
            np.concatenate(values),
        )


_ExtraArrays = tuple[Int32Array, Int32Array, Int32Array, Int32Array, Int32Array, Float32Array]


def _has_penalties(params: TokenParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
    )


def _bias_arrays(bias: dict[int, float]) -> tuple[Int32Array, Float32Array]:
    return np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)


def _no_extras(rows: int) -> _ExtraArrays:
    starts = np.zeros(rows + 1, np.int32)
    return starts, _NO_INTS, starts[:rows], starts, _NO_INTS, _NO_FLOATS


def _greedy(rows: int) -> Sampling:
    zeros, zero_ints = np.zeros(rows, np.float32), np.zeros(rows, np.int32)
    ones = np.ones(rows, np.float32)
    history_starts, history, prompt_lengths, bias_starts, bias_ids, bias_values = _no_extras(rows)
    return Sampling(
        temperature=zeros,
        top_k=zero_ints,
        top_p=ones,
        min_p=zeros,
        repetition_penalty=ones,
        presence_penalty=zeros,
        frequency_penalty=zeros,
        seeds=np.zeros(rows, np.uint64),
        positions=zero_ints,
        num_logprobs=np.full(rows, -1, np.int32),
        history_starts=history_starts,
        history=history,
        prompt_lengths=prompt_lengths,
        bias_starts=bias_starts,
        bias_ids=bias_ids,
        bias_values=bias_values,
    )
