"""Weight-only quantization in numpy: what each format does to a weight matrix."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .rotation import rotate

Float32 = npt.NDArray[np.float32]

INT8_MAX = 127
INT4_MAX = 15


def round_bf16(array: npt.NDArray[Any]) -> Float32:
    """Round to the nearest bf16 (ties to even) and return it as f32."""
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def quantize_int8(
    weight: Float32, group: int, rotation: int
) -> tuple[npt.NDArray[np.int8], Float32]:
    """Rotate `weight` [N, K], then round it to int8 with one bf16 scale a row and `group` columns.

    Returns the integers, [N, K padded with zeros to whole groups], and the scales as f32,
    [N, groups]. The scale is max|w| / 127 rounded to bf16 first, so that the integers are the best
    ones for the scale that is stored; they stay within +-127.
    """
    if rotation:
        weight = rotate(weight, rotation)
    rows, columns = weight.shape
    groups = -(-columns // group)
    if groups * group != columns:
        weight = np.pad(weight, ((0, 0), (0, groups * group - columns)))
    cut = weight.reshape(rows, groups, group)
    most = np.maximum(cut.max(axis=2), -cut.min(axis=2))
    scales = round_bf16(most / INT8_MAX)
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    scaled = cut * inverse[:, :, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, -INT8_MAX, INT8_MAX, out=scaled)
    return scaled.astype(np.int8).reshape(rows, groups * group), scales


def quantize_int4(weight: Float32, group: int) -> tuple[npt.NDArray[np.uint8], Float32, Float32]:
    """Round `weight` [N, K] to 4 bits: w = q * scale + minimum, a scale and a minimum a group.

    Returns the integers 0 to 15, [N, K padded with zeros to whole groups], and scales and minima,
    f16 as f32, [N, groups]. A row that has 16 evenly spaced values in a group, as GGUF's Q4_0 and
    Q4_1 have, comes back as it was.
    """
    rows, columns = weight.shape
    groups = -(-columns // group)
    if groups * group != columns:
        weight = np.pad(weight, ((0, 0), (0, groups * group - columns)))
    cut = weight.reshape(rows, groups, group)
    low, high = cut.min(axis=2), cut.max(axis=2)
    minima = _round_f16(low)
    scales = _round_f16((high - low) / INT4_MAX)
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    scaled = (cut - minima[:, :, None]) * inverse[:, :, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, 0, INT4_MAX, out=scaled)
    return scaled.astype(np.uint8).reshape(rows, groups * group), scales, minima


def _round_f16(array: Float32) -> Float32:
    limit = np.float32(np.finfo(np.float16).max)
    return np.clip(array, -limit, limit).astype(np.float16).astype(np.float32)


def fake_quantize(weight: Float32, format: str, group: int, rotation: int = 0) -> Float32:
    """Return `weight` [N, K] as an engine in `format` would see it, as f32 of the same shape."""
    if format == "f32":
        return weight
    if format == "bf16":
        return round_bf16(weight)
    if format == "int8":
        rows, columns = weight.shape
        integers, scales = quantize_int8(weight, group or columns, rotation)
        cut = integers.reshape(rows, scales.shape[1], -1).astype(np.float32)
        rounded = (cut * scales[:, :, None]).reshape(rows, -1)
        return (rotate(rounded, rotation) if rotation else rounded)[:, :columns]
    if format == "int4":
        rows, columns = weight.shape
        integers, scales, minima = quantize_int4(weight, group)
        cut = integers.reshape(rows, scales.shape[1], -1).astype(np.float32)
        return (cut * scales[:, :, None] + minima[:, :, None]).reshape(rows, -1)[:, :columns]
    raise ValueError(f"unknown weight format {format!r}")
