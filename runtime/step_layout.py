"""How a step becomes runs of a TensorRT plan: profiles, padding and the arrays of each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .cuda_contract import BLOCK_TOKENS
from .errors import StepFailedError
from .manifest import ProfileFacts, TensorRTFacts
from .session import Batch, Int32Array


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the plan: its padded inputs, and the logit rows of the step that it gives."""

    profile: int
    inputs: dict[str, Int32Array]
    slots: Int32Array  # where each token's keys and values go, padding included
    first_row: int
    rows: int  # wanted; the run gives `inputs["logit_rows"]` many
    key: tuple[int, int] | None  # of a generation run, which can be replayed: sequences, blocks


def padded_size(count: int, most: int) -> int:
    """Return the least power of two that is not below `count`, or `most` if that is less."""
    return min(1 << max(0, count - 1).bit_length(), most)


def lay_out(batch: Batch, facts: TensorRTFacts, spare_block: int, max_batch_size: int) -> list[Run]:
    """Cut a step into runs, in order of its logit rows.

    The plugin form computes a step at once. The gather form computes each chunk by itself, and
    neighbouring sequences of one token together. Runs of single tokens are padded to powers of
    two, in sequences and in blocks; padding works on `spare_block`. Raises StepFailedError for a
    step that no profile holds.
    """
    rows = batch.logit_rows
    if np.any(np.diff(rows) <= 0):
        raise StepFailedError("the logit rows of a step are not in the order of its tokens")
    counts = np.diff(batch.seq_starts)
    tables = np.where(batch.block_tables < 0, spare_block, batch.block_tables)
    made: list[Run] = []
    for first, last in _groups(counts, facts.attention):
        begin, end = int(batch.seq_starts[first]), int(batch.seq_starts[last])
        low, high = (int(at) for at in np.searchsorted(rows, [begin, end]))
        part = _Part(
            ids=batch.token_ids[begin:end],
            counts=counts[first:last],
            past=batch.past_tokens[first:last],
            tables=tables[first:last],
            rows=rows[low:high] - begin,
        )
        made.append(_run(part, facts, spare_block, max_batch_size, low))
    return made


@dataclass(slots=True)
class _Part:
    ids: Int32Array
    counts: Int32Array
    past: Int32Array
    tables: Int32Array
    rows: Int32Array


def _groups(counts: Int32Array, attention: str) -> Iterator[tuple[int, int]]:
    if attention == "plugin":
        yield 0, len(counts)
        return
    first = 0
    for index, count in enumerate(counts):
        if count > 1:
            if first < index:
                yield first, index
            yield index, index + 1
            first = index + 1
    if first < len(counts):
        yield first, len(counts)


def _run(part: _Part, facts: TensorRTFacts, spare: int, max_batch_size: int, first_row: int) -> Run:
    gathers = facts.attention == "gather"
    needed = part.past if gathers else part.past + part.counts
    blocks = max(1, -(-int(needed.max()) // BLOCK_TOKENS))
    generation = bool((part.counts == 1).all())
    wanted = len(part.rows)
    if generation:
        blocks = padded_size(blocks, facts.max_blocks)
        _pad(part, padded_size(len(part.counts), max_batch_size), spare)
    elif not wanted:
        part.rows = np.zeros(1, np.int32)  # a plan gives at least one row
    seqs, width = part.tables.shape
    tables = np.full((seqs, blocks), spare, np.int32)
    tables[:, : min(blocks, width)] = part.tables[:, :blocks]
    starts = np.zeros(seqs + 1, np.int32)
    np.cumsum(part.counts, out=starts[1:])
    owners: Int32Array = np.repeat(np.arange(seqs, dtype=np.int32), part.counts)
    first = np.arange(int(starts[-1]), dtype=np.int32) - starts[owners]
    positions: Int32Array = first + part.past[owners]
    slots: Int32Array = (
        part.tables[owners, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    )
    inputs = {
        "ids": part.ids.reshape(seqs, -1) if gathers else part.ids,
        "past_tokens": part.past,
        "block_tables": tables,
        "logit_rows": part.rows,
    }
    if not gathers:
        inputs |= {"positions": positions, "slots": slots, "seq_starts": starts}
    inputs = {name: np.ascontiguousarray(array, np.int32) for name, array in inputs.items()}
    kind = "generation" if generation else "context"
    return Run(
        profile=choose_profile(facts.profiles, kind, dims_of(inputs)),
        inputs=inputs,
        slots=np.ascontiguousarray(slots, np.int32),
        first_row=first_row,
        rows=wanted,
        key=(seqs, blocks) if generation else None,
    )


def _pad(part: _Part, size: int, spare: int) -> None:
    """Add sequences of one token that work on the spare block, and rows of them."""
    extra = size - len(part.counts)
    part.ids = np.concatenate([part.ids, np.zeros(extra, np.int32)])
    part.counts = np.concatenate([part.counts, np.ones(extra, np.int32)])
    part.past = np.concatenate([part.past, np.zeros(extra, np.int32)])
    blank = np.full((extra, part.tables.shape[1]), spare, np.int32)
    part.tables = np.concatenate([part.tables, blank])
    part.rows = np.concatenate([part.rows, np.zeros(size - len(part.rows), np.int32)])


def dims_of(inputs: dict[str, Int32Array]) -> dict[str, int]:
    """Return the size of every named dimension of a run."""
    seqs, blocks = inputs["block_tables"].shape
    dims = {
        "seqs": seqs,
        "blocks": blocks,
        "tokens": inputs["ids"].shape[-1],
        "rows": len(inputs["logit_rows"]),
    }
    if "seq_starts" in inputs:
        dims["starts"] = seqs + 1
    return dims


def choose_profile(profiles: Sequence[ProfileFacts], kind: str, dims: dict[str, int]) -> int:
    """Return the profile of that kind whose ranges are narrowest around `dims`, else of any kind.

    Raises StepFailedError if there is none.
    """

    def holds(profile: ProfileFacts) -> bool:
        ranges = profile.dims
        return all(ranges[name][0] <= size <= ranges[name][2] for name, size in dims.items())

    fitting = [index for index, profile in enumerate(profiles) if holds(profile)]
    if not fitting:
        sizes = ", ".join(f"{size} {name}" for name, size in dims.items())
        raise StepFailedError(
            f"no optimization profile of the engine holds a run of {sizes}; build it with higher "
            "limits"
        )

    def rank(index: int) -> tuple[bool, int]:
        profile = profiles[index]
        width = sum(profile.dims[name][2] for name in dims)
        return profile.kind != kind, width

    return min(fitting, key=rank)
