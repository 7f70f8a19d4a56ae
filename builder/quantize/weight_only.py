"""Weight-only quantization in numpy: what each format does to a weight matrix."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .rotation import rotate

Float32 = npt.NDArray[np.float32]

INT8_MAX = 127
INT4_MAX = 7
UINT4_MAX = 15
FP8_MAX = 448.0  # of e4m3


def round_bf16(array: npt.NDArray[Any]) -> Float32:
    """Round to the nearest bf16 (ties to even) and return it as f32."""
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def round_f16(array: npt.NDArray[Any]) -> Float32:
    """Round to the nearest f16 (ties to even), at most its largest number, as f32."""
    most = np.finfo(np.float16).max
    return np.clip(array, -most, most).astype(np.float16).astype(np.float32)


def quantize_int8(
    weight: Float32, group: int, rotation: int = 0
) -> tuple[npt.NDArray[np.int8], Float32]:
    """Round `weight` [N, K] to int8 with one bf16 scale a row and group of `group` columns.

    With a `rotation`, runs of that many columns are rotated first.

    Returns the integers, [N, K padded with zeros to whole groups], and the scales as f32,
    [N, groups]. The scale is max|w| / 127 rounded to bf16 first, so that the integers are the best
    ones for the scale that is stored; they stay within +-127.
    """
    return _quantize_groups(rotate(weight, rotation) if rotation else weight, group, INT8_MAX)


def quantize_int4(weight: Float32, group: int) -> tuple[npt.NDArray[np.int8], Float32]:
    """Round `weight` [N, K] to int4 as `quantize_int8` does to int8; integers within +-7."""
    return _quantize_groups(weight, group, INT4_MAX)


def quantize_fp8(weight: Float32) -> tuple[npt.NDArray[Any], Float32]:
    """Round `weight` [N, K] to fp8 e4m3 with one bf16 scale a row; returns [N, K] and [N, 1]."""
    scales = round_bf16(np.abs(weight).max(axis=1, keepdims=True) / FP8_MAX)
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    return np.clip(weight * inverse, -FP8_MAX, FP8_MAX).astype(ml_dtypes.float8_e4m3fn), scales


def _quantize_groups(
    weight: Float32, group: int, most_integer: int
) -> tuple[npt.NDArray[np.int8], Float32]:
    rows, columns = weight.shape
    groups = -(-columns // group)
    if groups * group != columns:
        weight = np.pad(weight, ((0, 0), (0, groups * group - columns)))
    cut = weight.reshape(rows, groups, group)
    most = np.maximum(cut.max(axis=2), -cut.min(axis=2))
    scales = round_bf16(most / most_integer)
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    scaled = cut * inverse[:, :, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, -most_integer, most_integer, out=scaled)
    return scaled.astype(np.int8).reshape(rows, groups * group), scales


def quantize_uint4(weight: Float32, group: int) -> tuple[npt.NDArray[np.uint8], Float32, Float32]:
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
    minima = round_f16(low)
    scales = round_f16((high - low) / UINT4_MAX)
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    scaled = (cut - minima[:, :, None]) * inverse[:, :, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, 0, UINT4_MAX, out=scaled)
    return scaled.astype(np.uint8).reshape(rows, groups * group), scales, minima


def fake_quantize(weight: Float32, format: str, group: int, rotation: int = 0) -> Float32:
    """Return `weight` [N, K] as an engine in `format` would see it, as f32 of the same shape."""
    if format == "f32":
        return weight
    if format == "bf16":
        return round_bf16(weight)
    if format == "f16":
        return round_f16(weight)
    if format == "fp8":
        values, scales = quantize_fp8(weight)
        return values.astype(np.float32) * scales
    if format in ("int8", "int4"):
        rows, columns = weight.shape
        if format == "int8":
            integers, scales = quantize_int8(weight, group or columns, rotation)
        else:
            integers, scales = quantize_int4(weight, group or columns)
        cut = integers.reshape(rows, scales.shape[1], -1).astype(np.float32)
        rounded = (cut * scales[:, :, None]).reshape(rows, -1)
        return (rotate(rounded, rotation) if rotation else rounded)[:, :columns]
    if format == "uint4":
        rows, columns = weight.shape
        integers, scales, minima = quantize_uint4(weight, group)
        cut = integers.reshape(rows, scales.shape[1], -1).astype(np.float32)
        return (cut * scales[:, :, None] + minima[:, :, None]).reshape(rows, -1)[:, :columns]
    raise ValueError(f"unknown weight format {format!r}")
