"""The sampling parameters of all slots as arrays, from which each step takes its rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..runtime.errors import RequestError
from ..runtime.session import Int32Array, Sampling
from .logit_rows import LogitRows
from .request import Request
from .row_extras import ExtraArrays, Extras, needs_extras, no_extras, pack_extras
from .sampling import TokenParams


class SamplingTable:
    """One row a slot; a row is written when a request enters the slot."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._mask_words = -(-vocab_size // 32)
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int32)
        self._top_p = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._repetition = np.ones(num_slots, np.float32)
        self._presence = np.zeros(num_slots, np.float32)
        self._frequency = np.zeros(num_slots, np.float32)
        self._seeds = np.zeros(num_slots, np.uint64)
        self._logprobs = np.full(num_slots, -1, np.int32)
        self._rich: set[int] = set()  # slots that are not greedy and nothing else
        self._extras: list[Extras | None] = [None] * num_slots
        self._greedy: dict[int, Sampling] = {}  # by number of rows

    def enter(self, slot: int, request: Request) -> None:
        """Write the row of a request's slot."""
        self.enter_params(slot, request.params)
        if needs_extras(request):
            self._extras[slot] = Extras(request)
            self._rich.add(slot)

    def enter_params(self, slot: int, params: TokenParams) -> None:
        """Write a slot's row with the parameters that are one number each."""
        self._temperature[slot] = params.temperature
        self._top_k[slot] = params.top_k
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._repetition[slot] = params.repetition_penalty
        self._presence[slot] = params.presence_penalty
        self._frequency[slot] = params.frequency_penalty
        self._seeds[slot] = params.seed
        self._logprobs[slot] = params.num_logprobs
        self._extras[slot] = None
        if params.temperature == 0 and params.num_logprobs < 0:
            self._rich.discard(slot)
        else:
            self._rich.add(slot)

    def reads_tokens(self, slots: list[int]) -> bool:
        """Return whether any of those slots is sampled by more than one number a field."""
        return any(self._extras[slot] is not None for slot in slots)

    def plain(self, slots: list[int]) -> Sampling | None:
        """Return the sampling of those slots, one row each, if all are greedy and nothing else."""
        if not self._rich.isdisjoint(slots):
            return None
        rows = len(slots)
        if rows not in self._greedy:
            self._greedy[rows] = greedy_sampling(rows)
        return self._greedy[rows]

    def pack(
        self,
        slots: npt.NDArray[np.intp],
        positions: Int32Array,
        requests: list[Request | None],
        laid: LogitRows | None = None,
    ) -> tuple[Sampling, dict[int, RequestError]]:
        """Return the logit rows of those slots, in that order, and the requests that cannot go on.

        `positions` are of the sampled tokens; a request is None when it has ended meanwhile.
        """
        rows = len(slots)
        if laid is None:
            ahead: list[list[int]] = [[]] * rows
            forced = [-1] * rows
        else:
            ahead, forced = laid.ahead, laid.forced
        indices: list[int] = slots.tolist()
        extras = [self._extras[slot] for slot in indices]
        if laid is None and not any(extras):
            arrays = no_extras(rows)
        else:
            arrays = pack_extras(requests, extras, ahead, forced, self._mask_words)
        sampling = self._gather(slots, positions, arrays)
        if laid is not None and laid.prompt_firsts:
            _force(sampling, requests, forced)
        return sampling, arrays.errors

    def _gather(
        self, slots: npt.NDArray[np.intp], positions: Int32Array, arrays: ExtraArrays
    ) -> Sampling:
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
            history_starts=arrays.history_starts,
            history=arrays.history,
            prompt_lengths=arrays.prompt_lengths,
            bias_starts=arrays.bias_starts,
            bias_ids=arrays.bias_ids,
            bias_values=arrays.bias_values,
            masks=arrays.masks,
        )


def _force(sampling: Sampling, requests: list[Request | None], forced: list[int]) -> None:
    """Make the rows of prompt tokens greedy, so that each reports on the token it is forced to."""
    for row, request in enumerate(requests):
        if forced[row] >= 0:
            sampling.temperature[row] = 0
            wanted = None if request is None else request.params.prompt_logprobs
            sampling.num_logprobs[row] = -1 if wanted is None else wanted


def greedy_sampling(rows: int) -> Sampling:
    """Return the sampling of rows that are all greedy and ask for nothing else."""
    zeros, zero_ints = np.zeros(rows, np.float32), np.zeros(rows, np.int32)
    ones = np.ones(rows, np.float32)
    arrays = no_extras(rows)
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
        history_starts=arrays.history_starts,
        history=arrays.history,
        prompt_lengths=arrays.prompt_lengths,
        bias_starts=arrays.bias_starts,
        bias_ids=arrays.bias_ids,
        bias_values=arrays.bias_values,
    )
