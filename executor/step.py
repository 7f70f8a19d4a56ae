"""From a plan to the arrays of a step, and from a step's result back to ints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    laid: LogitRows | None  # None: one logit row a sample row


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
        slots = np.array(plan.slots, np.intp)
        starts = np.array(plan.starts, np.int32)
        counts = np.array(plan.counts, np.int32)
        seq_starts = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(counts, out=seq_starts[1:])
        width = -(-int((starts + counts).max()) // self._block_tokens)
        if plan.drafts or plan.prompt_rows:
            laid = lay_out(plan, requests)
            logit_rows = seq_starts[laid.rows] + np.array(laid.offsets, np.int32)
        else:
            laid = None
            logit_rows = seq_starts[np.array(plan.sample_rows, np.intp) + 1] - 1
        token_ids = _token_ids(plan, requests, self._laid)
        self._laid = laid
        return Batch(
            token_ids=token_ids,
            seq_starts=seq_starts,
            past_tokens=starts,
            block_tables=self._tables[:, :width][slots],
            logit_rows=logit_rows,
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
        sampled = [requests.get(plan.requests[row]) for row in rows]
        slots = np.array(plan.slots, np.intp)[rows]
        starts = np.array(plan.starts, np.int32)[rows]
        if laid is None:
            positions = starts + np.array(plan.counts, np.int32)[rows]
        else:
            positions = starts + np.array(laid.offsets, np.int32) + 1
        sampling, errors = self._sampling.pack(slots, positions, sampled, laid)
        return PackedSampling(sampling, errors, laid)


def unpack(result: StepResult, packed: PackedSampling) -> StepOutput:
    """Return a result as lists; `packed` is what the step was sampled with."""
    tokens: list[int] = result.tokens.tolist()
    laid = packed.laid
    firsts = None if laid is None else laid.firsts
    prompt_firsts: dict[int, int] = {} if laid is None else laid.prompt_firsts
    if (packed.sampling.num_logprobs < 0).all():
        return StepOutput(tokens, firsts=firsts, prompt_firsts=prompt_firsts)
    return StepOutput(
        tokens,
        result.logprobs.tolist(),
        result.top_ids.tolist(),
        result.top_logprobs.tolist(),
        firsts,
        prompt_firsts,
    )


def _token_ids(
    plan: StepPlan, requests: Mapping[int, Request], before: LogitRows | None
) -> Int32Array:
    """Return a step's tokens; `before` are the logit rows of the step before, where it has some."""
    split = plan.num_context
    ids: list[int] = []
    for row in range(split):
        start = plan.starts[row]
        ids += requests[plan.requests[row]].tokens[start : start + plan.counts[row]]
    if not plan.drafts and not plan.device_tokens:
        ids += [requests[number].tokens[-1] for number in plan.requests[split:]]
        return np.array(ids, np.int32)
    for row in range(split, len(plan.requests)):
        sampled = plan.device_tokens.get(row)
        if sampled is None:
            ids.append(requests[plan.requests[row]].tokens[-1])
        else:
            ids.append(-1 - (sampled if before is None else before.firsts[sampled]))
        ids += plan.drafts.get(row, ())
    return np.array(ids, np.int32)
