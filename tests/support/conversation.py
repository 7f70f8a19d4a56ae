"""A paged conversation: chunks of prompts beside generation, with block tables of no order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from enginewright.runtime.session import Batch

BLOCK_TOKENS = 32
# Tokens of each of three sequences in each step: whole prompts, chunks, single tokens, drafts.
STEPS = (
    {0: 37},
    {1: 20, 0: 1},
    {1: 33, 2: 5, 0: 1},
    {2: 1, 0: 1, 1: 1},
    {0: 30, 2: 1, 1: 1},
    {1: 1, 0: 1},
    {2: 4, 0: 1, 1: 1},
    {0: 1, 1: 1, 2: 1},
)


def conversation(vocab_size: int, blocks: int = 24, seed: int = 0) -> Iterator[Batch]:
    """Yield the steps; every token's logits are wanted in some of them, the last ones in others."""
    random = np.random.default_rng(seed)
    free = random.permutation(blocks).tolist()
    past = {0: 0, 1: 0, 2: 0}
    tables: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number, step in enumerate(STEPS):
        counts = np.array(list(step.values()), np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        for sequence, count in step.items():
            while len(tables[sequence]) * BLOCK_TOKENS < past[sequence] + count:
                tables[sequence].append(free.pop())
        width = max(len(tables[sequence]) for sequence in step)
        padded = np.full((len(step), width), -1, np.int32)
        for row, sequence in enumerate(step):
            padded[row, : len(tables[sequence])] = tables[sequence]
        rows = starts[1:] - 1 if number % 2 or starts[-1] > 16 else np.arange(starts[-1])
        yield Batch(
            token_ids=random.integers(vocab_size, size=starts[-1]).astype(np.int32),
            seq_starts=starts,
            past_tokens=np.array([past[sequence] for sequence in step], np.int32),
            block_tables=padded,
            logit_rows=rows.astype(np.int32),
        )
        for sequence, count in step.items():
            past[sequence] += count
