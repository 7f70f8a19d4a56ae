"""Weights in the layouts that the kernels read; plugins/cpu/panels.h describes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...network import Weight
from ...quantize.weight_only import (
    fake_quantize,
    quantize_fp8,
    quantize_int8,
    quantize_uint4,
)
from .isa import IsaLevel

Float32 = npt.NDArray[np.float32]

DOT_FORMATS = ("bf16", "fp8")
"""Formats whose products take rows that were rounded to bf16, where a level has such products."""

_ROWS_AT_A_TIME = 4096  # rows packed in one piece: bounds the memory that a large weight takes


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """How one weight lies in the weights file."""

    kind: str  # "panels", "rows" (a table, row by row) or "vector"
    format: str  # f32, bf16, int8, fp8 or uint4
    rows: int  # N, without padding
    columns: int  # K, without padding
    k: int  # K as it is stored
    panels: int
    panel_bytes: int
    interleaved: bool = False  # gate and up columns alternate by half panels
    group: int = 0  # int8, uint4: elements along k that share a scale

    @property
    def bytes(self) -> int:
        """Bytes of the whole weight."""
        return self.panels * self.panel_bytes


def plan_panels(weight: Weight, level: IsaLevel, interleaved: bool) -> PackedLayout:
    """Lay out a matrix [N, K] as panels; `interleaved` for gate rows followed by up rows."""
    rows, columns = weight.sizes
    half = level.panel // 2
    panels = -(-(rows // 2) // half) if interleaved else -(-rows // level.panel)
    format, k = weight.format, columns
    if format in DOT_FORMATS and level.dot_bf16:
        k = dot_width(columns, level)
    elif columns % {"bf16": 2, "fp8": 4}.get(format, 1):
        format = "f32"  # panels hold pairs or fours along k, and rows of floats are not padded
    group = weight.group if format in ("int8", "uint4") else 0
    if group:
        k = -(-columns // group) * group
        column_bytes = 2 + group if format == "int8" else 4 + group // 2
        panel_bytes = k // group * level.panel * column_bytes
    else:
        panel_bytes = level.panel * {"f32": 4 * k, "bf16": 2 * k, "fp8": 2 + k}[format]
    return PackedLayout("panels", format, rows, columns, k, panels, panel_bytes, interleaved, group)


def dot_width(columns: int, level: IsaLevel) -> int:
    """Return K as rows and panels for products of bf16 are padded, where a level has them."""
    return -(-columns // level.dot_bf16) * level.dot_bf16


def plan_table(weight: Weight) -> PackedLayout:
    """Lay out a table or a vector row by row, in f32 or bf16."""
    rows, columns = weight.sizes if len(weight.sizes) == 2 else (1, weight.sizes[0])
    size = 2 if weight.format == "bf16" else 4
    kind = "rows" if len(weight.sizes) == 2 else "vector"
    stride = -(-columns * size // 64) * 64 if kind == "rows" else columns * size
    return PackedLayout(kind, weight.format, rows, columns, columns, rows, stride)


def plan_bias(weight: Weight, level: IsaLevel, interleaved: bool) -> PackedLayout:
    """Lay out a bias: one float a packed column."""
    rows = weight.sizes[0]
    half = level.panel // 2
    panels = -(-(rows // 2) // half) if interleaved else -(-rows // level.panel)
    return PackedLayout("bias", "f32", rows, 1, 1, panels, level.panel * 4, interleaved)


def pack(weight: Weight, layout: PackedLayout, level: IsaLevel) -> Iterator[npt.NDArray[Any]]:
    """Yield the weight's bytes in pieces, in order."""
    array = np.ascontiguousarray(weight.load(), np.float32)
    if layout.format == "f32":
        array = fake_quantize(array, weight.format, 0)
    if layout.kind == "vector":
        yield array
    elif layout.kind == "rows":
        yield from _table_rows(array, layout)
    elif layout.kind == "bias":
        yield _arrange(array[:, None], layout, level)[:, 0]
    else:
        yield from _panels(array, weight.rotation, layout, level)


def _table_rows(array: Float32, layout: PackedLayout) -> Iterator[npt.NDArray[Any]]:
    dtype = ml_dtypes.bfloat16 if layout.format == "bf16" else np.float32
    width = layout.panel_bytes // np.dtype(dtype).itemsize
    for start in range(0, layout.rows, _ROWS_AT_A_TIME):
        part = array[start : start + _ROWS_AT_A_TIME].astype(dtype)
        yield np.pad(part, ((0, 0), (0, width - layout.columns)))


def _arrange(array: Float32, layout: PackedLayout, level: IsaLevel) -> Float32:
    """Order rows as the panels hold them, with rows of zeros where there is nothing."""
    out = np.zeros((layout.panels * level.panel, array.shape[1]), np.float32)
    if not layout.interleaved:
        out[: layout.rows] = array
        return out
    half, size = level.panel // 2, layout.rows // 2
    cut = out.reshape(layout.panels, 2, half, array.shape[1])
    for index, part in enumerate((array[:size], array[size:])):
        padded = np.zeros((layout.panels * half, array.shape[1]), np.float32)
        padded[:size] = part
        cut[:, index] = padded.reshape(layout.panels, half, -1)
    return out


def _panels(
    array: Float32, rotation: int, layout: PackedLayout, level: IsaLevel
) -> Iterator[npt.NDArray[Any]]:
    if layout.interleaved:
        array = _arrange(array, layout, level)
    step = _ROWS_AT_A_TIME // level.panel * level.panel
    for start in range(0, layout.panels * level.panel, step):
        part = array[start : start + step]
        missing = min(step, layout.panels * level.panel - start) - part.shape[0]
        if missing:
            part = np.pad(part, ((0, missing), (0, 0)))
        if layout.format == "int8":
            yield _pack_int8(part, layout.group, rotation, level)
        elif layout.format == "uint4":
            yield _pack_uint4(part, layout.group, level)
        elif layout.format == "fp8":
            yield _pack_fp8(part, layout, level)
        else:
            yield _pack_floats(part, layout, level)


def _pack_int8(part: Float32, group: int, rotation: int, level: IsaLevel) -> npt.NDArray[np.uint8]:
    integers, scales = quantize_int8(part, group, rotation)
    panels, groups = part.shape[0] // level.panel, scales.shape[1]
    block = level.panel * group
    out = np.empty((panels, groups, level.panel * 2 + block), np.uint8)
    ordered = scales.reshape(panels, level.panel, groups).transpose(0, 2, 1)
    out[:, :, : level.panel * 2] = np.ascontiguousarray(ordered, ml_dtypes.bfloat16).view(np.uint8)
    stored = (integers.view(np.uint8) + np.uint8(level.offset)).reshape(-1, groups, group // 4, 4)
    stored = stored.view(np.uint32)[..., 0].reshape(panels, level.panel, groups, group // 4)
    steps = np.ascontiguousarray(stored.transpose(0, 2, 3, 1)).view(np.uint8)
    out[:, :, level.panel * 2 :] = steps.reshape(panels, groups, block)
    return out


def _pack_uint4(part: Float32, group: int, level: IsaLevel) -> npt.NDArray[np.uint8]:
    integers, scales, minima = quantize_uint4(part, group)
    panels, groups, panel = part.shape[0] // level.panel, scales.shape[1], level.panel
    head, half = panel * 4, group // 8  # half of the steps of four elements
    out = np.empty((panels, groups, head + panel * group // 2), np.uint8)
    for index, facts in enumerate((scales, minima)):
        ordered = facts.reshape(panels, panel, groups).transpose(0, 2, 1)
        place = slice(index * panel * 2, (index + 1) * panel * 2)
        out[:, :, place] = np.ascontiguousarray(ordered, np.float16).view(np.uint8)
    steps = integers.view(np.uint32).reshape(panels, panel, groups, 2, half)
    low, high = (np.ascontiguousarray(steps[:, :, :, i].transpose(0, 2, 3, 1)) for i in (0, 1))
    out[:, :, head:] = (low | high << 4).view(np.uint8).reshape(panels, groups, -1)
    return out


def _pack_fp8(part: Float32, layout: PackedLayout, level: IsaLevel) -> npt.NDArray[np.uint8]:
    values, scales = quantize_fp8(part)
    panels, head = part.shape[0] // level.panel, level.panel * 2
    padded = np.pad(values.view(np.uint8), ((0, 0), (0, layout.k - layout.columns)))
    fours = padded.reshape(panels, level.panel, layout.k // 4, 2, 2)  # element 2 * i + j of each
    out = np.empty((panels, layout.panel_bytes), np.uint8)
    columns = scales.reshape(panels, level.panel)
    out[:, :head] = np.ascontiguousarray(columns, ml_dtypes.bfloat16).view(np.uint8)
    out[:, head:] = fours.transpose(0, 2, 1, 4, 3).reshape(panels, -1)
    return out


def _pack_floats(part: Float32, layout: PackedLayout, level: IsaLevel) -> npt.NDArray[Any]:
    panels = part.shape[0] // level.panel
    part = np.pad(part, ((0, 0), (0, layout.k - layout.columns)))
    cut = part.reshape(panels, level.panel, layout.k)
    if layout.format == "f32":
        return np.ascontiguousarray(cut.transpose(0, 2, 1))
    pairs = cut.astype(ml_dtypes.bfloat16).reshape(panels, level.panel, layout.k // 2, 2)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3))
