"""Rotation before rounding: int8 weights and activations go through it to spread outliers.

Both sides of a product are multiplied, block by block along k, by the same orthogonal matrix, which
leaves the product as it is. A large element is shared out over its whole block, so one scale fits
all of them well (QuaRot, arXiv:2404.00456, rotates whole rows; blocks cost less and do as well).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

BLOCK = 64  # elements; its square root is a power of two, so the matrix's entries are exact
_BLOCKS_AT_A_TIME = 1024  # their sums stay in the second-level cache


def rotate(array: Float32, block: int) -> Float32:
    """Multiply each run of `block` elements of the last axis by the Walsh-Hadamard matrix.

    The matrix is divided by sqrt(block), so it is its own inverse. `block` is a power of two; the
    last axis is padded with zeros to a multiple of it, in the result too. Pairs are added in the
    order of plugins/cpu/hadamard.h, so that both round alike.
    """
    columns = array.shape[-1]
    short = -columns % block
    if short:
        array = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, short)])
    blocks = array.reshape(-1, block)
    result = np.empty_like(blocks)
    for start in range(0, len(blocks), _BLOCKS_AT_A_TIME):
        piece = slice(start, start + _BLOCKS_AT_A_TIME)
        result[piece] = _rotate_blocks(blocks[piece], block)
    return result.reshape(array.shape)


def _rotate_blocks(blocks: Float32, block: int) -> Float32:
    """Rotate every row of `blocks`; lying as columns, they are added up in long runs."""
    now = np.ascontiguousarray(blocks.T)
    then = np.empty_like(now)
    distance = 1
    while distance < block:
        pairs, mixed = (a.reshape(-1, 2, distance, now.shape[1]) for a in (now, then))
        np.add(pairs[:, 0], pairs[:, 1], out=mixed[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=mixed[:, 1])
        now, then = then, now
        distance *= 2
    return (now * np.float32(1.0 / np.sqrt(block))).T


def block_of(width: int) -> int:
    """Return the largest power of two, at most BLOCK, that divides `width`."""
    return min(width & -width, BLOCK)
