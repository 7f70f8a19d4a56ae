"""What passes between scheduler and device: a step's plan and its outcome, ids and counts only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How many tokens of which sequences one step computes.

    A row is one sequence. Rows that still read their prompt come first, then those that have one
    token to compute. The first four lists have one entry a row.
    """

    step: int
    requests: list[int]  # request numbers
    slots: list[int]  # each sequence's row in the persistent arrays of the step
    starts: list[int]  # tokens of the sequence that are computed already
    counts: list[int]  # tokens to compute now
    num_context: int  # leading rows that still read their prompt
    sample_rows: list[int]  # rows whose next token is wanted, ascending
    admitted: list[int]  # rows that run for the first time
    new_blocks: list[tuple[int, int, list[int]]]  # slot, index in its block table, block ids
    num_tokens: int  # sum of counts


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step gave, one entry for each of the plan's `sample_rows`."""

    tokens: list[int]
    logprobs: list[float] | None = None  # None when no row asked
    top_ids: list[list[int]] | None = None  # descending; -1 pads
    top_logprobs: list[list[float]] | None = None
