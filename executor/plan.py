"""What passes between scheduler and device: a step's plan and its outcome, ids and counts only."""

from __future__ import annotations

from dataclasses import dataclass, field

Move = tuple[int | bytes, int]  # a KV block, or what one holds; and the block that it is put into


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
    admitted: list[int]  # rows of requests that start or go on after a pause
    new_blocks: list[tuple[int, int, list[int]]]  # slot, index in its block table, block ids
    num_tokens: int  # sum of counts
    moves: list[Move] = field(default_factory=list[Move])  # before the step, in this order
    # Rows whose only token is not known yet: it is what this sampled row of the step before gave.
    device_tokens: dict[int, int] = field(default_factory=dict[int, int])
    # Tokens that are guessed to follow a row's last known one; they count into `counts`, and the
    # row has a logit row for each of them beside its own.
    drafts: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    # Rows whose prompt tokens want log-probabilities: how many, up to the end of the chunk or of
    # the prompt. They have a logit row each, before the row's own.
    prompt_rows: dict[int, int] = field(default_factory=dict[int, int])
    is_processed: bool = False  # the host changes logits of it before they are sampled


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step gave: one entry for each logit row.

    That is one for each of the plan's `sample_rows`; with drafts or prompt log-probabilities there
    are more, and `firsts` says where those of each sample row begin.
    """

    tokens: list[int]  # -1: no token was possible
    logprobs: list[float] | None = None  # None when no row asked
    top_ids: list[list[int]] | None = None  # descending; -1 pads
    top_logprobs: list[list[float]] | None = None
    firsts: list[int] | None = None  # by index in `sample_rows`; None: the index itself
    prompt_firsts: dict[int, int] = field(default_factory=dict[int, int])  # by row in `prompt_rows`
