"""From a plan to the arrays of a step, and from a step's result back to ints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from operator import add

import numpy as np

from ..runtime.errors import RequestError
from ..runtime.session import Batch, Int32Array, Sampling, StepResult
from .logit_rows import LogitRows, lay_out
from .plan import StepOutput, StepPlan
from .request import Request
from .sampling_table import SamplingTable


@dataclass(frozen=True, slots=True)
class PackedSampling:
    """How a step is sampled, and which of its requests cannot be."""

    sampling: Sampling
    errors: dict[int, RequestError]  # by request number; their rows are sampled freely
    laid: LogitRows | None = None  # None: one logit row a sample row
    has_logprobs: bool = True  # whether any row asks for log-probabilities


class StepPacker:
    """Owns the arrays that have a row for each slot; every packed array is a fresh copy.

    Block tables and sampling parameters are written when they change, not at every step.
    """

    def __init__(
        self, num_slots: int, max_seq_len: int, block_tokens: int, vocab_size: int
    ) -> None:
        self._block_tokens = block_tokens
        max_blocks = -(-max_seq_len // block_tokens)
        self._tables = np.full((num_slots, max_blocks), -1, np.int32)
        self._sampling = SamplingTable(num_slots, vocab_size)
        self._laid: LogitRows | None = None  # of the plan packed last, where it has some

    def pack_batch(self, plan: StepPlan, requests: Mapping[int, Request]) -> Batch:
        """Return what the session computes for one plan."""
        for row in plan.admitted:
            self._tables[plan.slots[row]] = -1
            self._sampling.enter(plan.slots[row], requests[plan.requests[row]])
        for slot, first, blocks in plan.new_blocks:
            self._tables[slot, first : first + len(blocks)] = blocks
        ends = list(accumulate(plan.counts))
        if plan.drafts or plan.prompt_rows:
            laid = lay_out(plan, requests)
            firsts = [0, *ends]
            logit_rows = [firsts[row] + at for row, at in zip(laid.rows, laid.offsets, strict=True)]
        else:
            laid = None
            logit_rows = [ends[row] - 1 for row in plan.sample_rows]
        token_ids = _token_ids(plan, requests, self._laid)
        self._laid = laid
        arrays = _as_arrays(token_ids, [0, *ends], plan.starts, logit_rows)
        width = -(-max(map(add, plan.starts, plan.counts)) // self._block_tokens)
        return Batch(
            token_ids=arrays[0],
            seq_starts=arrays[1],
            past_tokens=arrays[2],
            block_tables=self._tables[:, :width].take(plan.slots, 0),
            logit_rows=arrays[3],
        )

    def needs_tokens(self, plan: StepPlan) -> bool:
        """Return whether the sampling of a plan reads the tokens of its requests."""
        return self._sampling.reads_tokens(plan.slots)

    def pack_sampling(self, plan: StepPlan, requests: Mapping[int, Request]) -> PackedSampling:
        """Return how the plan that was packed last is sampled.

        Reads all tokens of its requests, so those of the step before must be known; a request that
        they ended may be missing.
        """
        laid = self._laid
        rows = plan.sample_rows if laid is None else laid.rows
        if laid is None:
            plain = self._sampling.plain([plan.slots[row] for row in rows])
            if plain is not None:
                return PackedSampling(plain, {}, has_logprobs=False)
        sampled = [requests.get(plan.requests[row]) for row in rows]
        slots = np.array(plan.slots, np.intp)[rows]
        starts = np.array(plan.starts, np.int32)[rows]
        if laid is None:
            positions = starts + np.array(plan.counts, np.int32)[rows]
        else:
            positions = starts + np.array(laid.offsets, np.int32) + 1
        sampling, errors = self._sampling.pack(slots, positions, sampled, laid)
        return PackedSampling(sampling, errors, laid, bool((sampling.num_logprobs >= 0).any()))


def unpack(result: StepResult, packed: PackedSampling) -> StepOutput:
    """Return a result as lists; `packed` is what the step was sampled with."""
    tokens: list[int] = result.tokens.tolist()
    laid = packed.laid
    firsts = None if laid is None else laid.firsts
    prompt_firsts: dict[int, int] = {} if laid is None else laid.prompt_firsts
    if not packed.has_logprobs:
        return StepOutput(tokens, firsts=firsts, prompt_firsts=prompt_firsts)
    return StepOutput(
        tokens,
        result.logprobs.tolist(),
        result.top_ids.tolist(),
        result.top_logprobs.tolist(),
        firsts,
        prompt_firsts,
    )


def _as_arrays(*lists: list[int]) -> list[Int32Array]:
    """Return the lists as parts of one array: a single conversion, which small steps feel."""
    together = np.array(list(chain.from_iterable(lists)), np.int32)
    ends = list(accumulate(map(len, lists), initial=0))
    return [together[start:end] for start, end in pairwise(ends)]


def _token_ids(
    plan: StepPlan, requests: Mapping[int, Request], before: LogitRows | None
) -> list[int]:
    """Return a step's tokens; `before` are the logit rows of the step before, where it has some."""
    split = plan.num_context
    ids: list[int] = []
    for row in range(split):
        start = plan.starts[row]
        ids += requests[plan.requests[row]].tokens[start : start + plan.counts[row]]
    if not plan.drafts and not plan.device_tokens:
        ids += [requests[number].tokens[-1] for number in plan.requests[split:]]
        return ids
    if before is None and not plan.drafts and len(plan.device_tokens) == len(plan.requests) - split:
        ids += [-1 - sampled for sampled in plan.device_tokens.values()]  # in order of their rows
        return ids
    for row in range(split, len(plan.requests)):
        sampled = plan.device_tokens.get(row)
        if sampled is None:
            ids.append(requests[plan.requests[row]].tokens[-1])
        else:
            ids.append(-1 - (sampled if before is None else before.firsts[sampled]))
        ids += plan.drafts.get(row, ())
    return ids
