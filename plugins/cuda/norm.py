"""Residual addition, RMS norm and rounding to int8 in one Triton kernel."""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

from .formats import int8_scale, to_int8


@triton.jit
def residual_norm_quantize(
    x,  # T[tokens, WIDTH]
    residual,  # T[tokens, WIDTH] or None
    weight,  # f32[WIDTH]
    total,  # T[tokens, WIDTH], written: x + residual; None without residual
    normed,  # written: T[tokens, WIDTH], or int8 with GROUP
    scales,  # f32[tokens, WIDTH / GROUP], written; None without GROUP
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,  # WIDTH up to a power of two
    EPS: tl.constexpr,
    GROUP: tl.constexpr,  # elements of a scale, a power of two that divides WIDTH; 0: not rounded
):
    """Root mean square norm, arXiv:1910.07467, of the f32 sum. Grid: (tokens,)."""
    token = tl.program_id(0)
    columns = tl.arange(0, PADDED)
    real = columns < WIDTH
    at = token.to(tl.int64) * WIDTH + columns
    values = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    if residual is not None:
        values += tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
        tl.store(total + at, values.to(total.dtype.element_ty), mask=real)
    mean = tl.sum(values * values, 0) / WIDTH
    values = values * tl.rsqrt(mean + EPS) * tl.load(weight + columns, mask=real, other=0.0)
    if GROUP > 0:
        groups: tl.constexpr = PADDED // GROUP
        values = tl.reshape(values, (groups, GROUP))
        scale = int8_scale(tl.max(tl.abs(values), 1))
        rounded = tl.reshape(to_int8(values, scale[:, None]), (PADDED,))
        tl.store(normed + at, rounded, mask=real)
        index = tl.arange(0, groups)
        row = scales + token.to(tl.int64) * (WIDTH // GROUP)
        tl.store(row + index, scale, mask=index < WIDTH // GROUP)
    else:
        tl.store(normed + at, values.to(normed.dtype.element_ty), mask=real)
