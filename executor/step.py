"""From a plan to the arrays of a step, and from a step's result back to ints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..runtime.session import Batch, Int32Array, Sampling, StepResult
from .plan import StepOutput, StepPlan
from .request import Request
from .sampling_table import SamplingTable


class StepPacker:
    """Owns the arrays that have a row for each slot; every packed array is a fresh copy.

    Block tables and sampling parameters are written when they change, not at every step.
    """

    def __init__(self, num_slots: int, max_seq_len: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        max_blocks = -(-max_seq_len // block_tokens)
        self._tables = np.full((num_slots, max_blocks), -1, np.int32)
        self._sampling = SamplingTable(num_slots)

    def pack(self, plan: StepPlan, requests: Mapping[int, Request]) -> tuple[Batch, Sampling]:
        """Return what the session computes and how it samples, for one plan."""
        for row in plan.admitted:
            self._tables[plan.slots[row]] = -1
            self._sampling.enter(plan.slots[row], requests[plan.requests[row]].params)
        for slot, first, blocks in plan.new_blocks:
            self._tables[slot, first : first + len(blocks)] = blocks
        slots = np.array(plan.slots, np.intp)
        starts = np.array(plan.starts, np.int32)
        counts = np.array(plan.counts, np.int32)
        rows = np.array(plan.sample_rows, np.intp)
        ends = starts + counts
        seq_starts = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(counts, out=seq_starts[1:])
        width = -(-int(ends.max()) // self._block_tokens)
        batch = Batch(
            token_ids=_token_ids(plan, requests),
            seq_starts=seq_starts,
            past_tokens=starts,
            block_tables=self._tables[:, :width][slots],
            logit_rows=seq_starts[rows + 1] - 1,
        )
        sampled = [requests[plan.requests[row]] for row in plan.sample_rows]
        return batch, self._sampling.pack(slots[rows], ends[rows], sampled)


def unpack(result: StepResult, sampling: Sampling) -> StepOutput:
    """Return a result as lists; `sampling` is what the step was sampled with."""
    tokens: list[int] = result.tokens.tolist()
    if (sampling.num_logprobs < 0).all():
        return StepOutput(tokens)
    return StepOutput(
        tokens,
        result.logprobs.tolist(),
        result.top_ids.tolist(),
        result.top_logprobs.tolist(),
    )


def _token_ids(plan: StepPlan, requests: Mapping[int, Request]) -> Int32Array:
    split = plan.num_context
    ids: list[int] = []
    for row in range(split):
        start = plan.starts[row]
        ids += requests[plan.requests[row]].tokens[start : start + plan.counts[row]]
    ids += [requests[number].tokens[-1] for number in plan.requests[split:]]
    return np.array(ids, np.int32)
