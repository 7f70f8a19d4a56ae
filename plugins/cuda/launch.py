"""Grids of the kernels, by formulas that hold for numbers and for TensorRT's symbolic sizes."""

from __future__ import annotations

from typing import Any

from ...runtime.cuda_contract import BLOCK_TOKENS
from .variants import SPLIT_KEYS, AttentionShape


def attention_grid(
    shape: AttentionShape, tokens: Any, seqs: Any, split_blocks: int = 0
) -> tuple[Any, Any, Any]:
    """Return the grid of `paged_attention`; with `split_blocks`, a table's width, of its splits.

    Each sequence has a tile for every whole tile of its tokens and one more, wherever in the step
    it begins, so that sizes alone give the number of tiles.
    """
    tile = shape.tokens(split_blocks > 0)
    return tokens // tile + seqs, shape.kv_heads, splits_of(split_blocks) if split_blocks else 1


def splits_of(blocks: int) -> int:
    """Return how many splits cover a block table of this width."""
    return -(-blocks * BLOCK_TOKENS // SPLIT_KEYS)


def merge_grid(shape: AttentionShape, tokens: Any) -> tuple[Any, int, int]:
    """Return the grid of `merge_splits`."""
    return tokens, shape.heads, 1


def kv_write_grid(shape: AttentionShape, tokens: Any) -> tuple[Any, int, int]:
    """Return the grid of `kv_write`."""
    return tokens, shape.kv_heads, 1
