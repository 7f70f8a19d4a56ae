"""The golden models: where they are, what transformers computed with them, steps that replay it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from enginewright.runtime.session import Batch

GOLDEN_FOLDER = Path(__file__).resolve().parents[1] / "golden"
GOLDEN_MODELS = sorted(path.parent for path in GOLDEN_FOLDER.glob("*/expected.npz"))
BLOCK_TOKENS = 32


def expected(folder: Path) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return (ids [tokens], logits [tokens, vocab]) of a golden model."""
    with np.load(folder / "expected.npz") as arrays:
        return arrays["ids"], arrays["logits"]


def prompt_batches(ids: npt.NDArray[np.int32], chunk: int) -> Iterator[Batch]:
    """Yield the steps that compute one prompt `chunk` tokens at a time, all logits wanted."""
    blocks = np.arange(-(-len(ids) // BLOCK_TOKENS), dtype=np.int32)
    for start in range(0, len(ids), chunk):
        tokens = ids[start : start + chunk]
        yield Batch(
            token_ids=tokens,
            seq_starts=np.array([0, len(tokens)], np.int32),
            past_tokens=np.array([start], np.int32),
            block_tables=blocks[None, :],
            logit_rows=np.arange(len(tokens), dtype=np.int32),
        )
