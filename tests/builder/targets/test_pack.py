"""Packed weights, unpacked again, are what the format makes of the weight."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginewright.builder.network import Weight
from enginewright.builder.quantize.formats import FORMATS
from enginewright.builder.quantize.rotation import rotate
from enginewright.builder.quantize.weight_only import fake_quantize
from enginewright.builder.targets.cpu import pack as pack_module
from enginewright.builder.targets.cpu.isa import LEVELS, IsaLevel
from enginewright.builder.targets.cpu.pack import (
    PackedLayout,
    pack,
    plan_bias,
    plan_panels,
    plan_table,
)

few_examples = settings(max_examples=25, deadline=None, derandomize=True)
levels = st.sampled_from(LEVELS)


def make_weight(rows: int, columns: int, format: str, group: int = 0) -> Weight:
    generator = np.random.default_rng([rows, columns])
    array = generator.standard_normal((rows, columns)).astype(np.float32)
    weight = Weight("w", (rows, columns), lambda: array)
    weight.format, weight.group = format, FORMATS[format].fixed_group or group
    weight.rotation = FORMATS[format].rotation
    return weight


def packed_bytes(weight: Weight, layout: PackedLayout, level: IsaLevel) -> npt.NDArray[np.uint8]:
    pieces = [np.ascontiguousarray(piece) for piece in pack(weight, layout, level)]
    data = np.concatenate([piece.view(np.uint8).ravel() for piece in pieces])
    assert len(data) == layout.bytes
    return data


def unpack(
    data: npt.NDArray[np.uint8], layout: PackedLayout, level: IsaLevel, group: int
) -> npt.NDArray[np.float32]:
    """Read panels element by element, as panels.h describes them: [columns of the panels, k]."""
    panel, k = level.panel, layout.k
    cut = data.reshape(layout.panels, layout.panel_bytes)
    if layout.format == "f32":
        rows = cut.view(np.float32).reshape(-1, k, panel).transpose(0, 2, 1)
    elif layout.format == "bf16":
        pairs = cut.view(ml_dtypes.bfloat16).reshape(-1, k // 2, panel, 2)
        rows = pairs.transpose(0, 2, 1, 3).astype(np.float32)
    elif layout.format == "fp8":
        scales = np.ascontiguousarray(cut[:, : 2 * panel]).view(ml_dtypes.bfloat16)
        fours = np.ascontiguousarray(cut[:, 2 * panel :]).reshape(-1, k // 4, panel, 4)
        values = fours[..., [0, 2, 1, 3]].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        whole = values * scales.astype(np.float32)[:, None, :, None]
        rows = whole.transpose(0, 2, 1, 3)
    elif layout.format == "uint4":
        groups = cut.reshape(-1, k // group, panel * (4 + group // 2))
        facts = np.ascontiguousarray(groups[..., : 4 * panel]).view(np.float16).astype(np.float32)
        scales, minima = facts[..., :panel], facts[..., panel:]
        values = groups[..., 4 * panel :].reshape(-1, k // group, 1, group // 8, panel, 4)
        values = np.concatenate([values & 15, values >> 4], axis=2).astype(np.float32)
        whole = values * scales[:, :, None, None, :, None] + minima[:, :, None, None, :, None]
        rows = whole.transpose(0, 4, 1, 2, 3, 5)
    else:
        groups = cut.reshape(-1, k // group, panel * (2 + group))
        scales = np.ascontiguousarray(groups[..., : 2 * panel]).view(ml_dtypes.bfloat16)
        values = groups[..., 2 * panel :].reshape(-1, k // group, group // 4, panel, 4)
        signed = (values.astype(int) - level.offset + 128) % 256 - 128
        whole = signed * scales.astype(np.float32)[:, :, None, :, None]
        rows = whole.transpose(0, 3, 1, 2, 4)
    return np.ascontiguousarray(rows, np.float32).reshape(layout.panels * panel, k)


def turned_back(rows: npt.NDArray[np.float32], weight: Weight) -> npt.NDArray[np.float32]:
    return rotate(rows, weight.rotation) if weight.rotation else rows


@few_examples
@given(
    level=levels,
    rows=st.integers(1, 90),
    columns=st.integers(1, 100),
    format=st.sampled_from(["f32", "bf16", "int8", "uint4", "fp8"]),
    group=st.sampled_from([64, 128, 192]),
)
def test_panels(level: IsaLevel, rows: int, columns: int, format: str, group: int) -> None:
    weight = make_weight(rows, columns, format, group if format == "int8" else 0)
    layout = plan_panels(weight, level, interleaved=False)
    group = weight.group
    found = unpack(packed_bytes(weight, layout, level), layout, level, group)
    found = turned_back(found, weight)
    expected = fake_quantize(weight.load(), format, group, weight.rotation)
    np.testing.assert_array_equal(found[:rows, :columns], expected)
    assert not found[rows:].any()
    assert layout.k >= columns
    assert format in ("int8", "uint4") or not found[:, columns:].any()
    step = {"bf16": 2, "fp8": 4}.get(format, 1)
    whole = level.dot_bf16 or columns % step == 0
    assert layout.format == (format if whole else "f32")


@few_examples
@given(
    level=levels,
    half=st.integers(1, 70),
    columns=st.integers(1, 40).map(lambda n: 2 * n),
    format=st.sampled_from(["f32", "bf16", "int8", "fp8"]),
)
def test_gate_and_up_alternate_by_half_panels(
    level: IsaLevel, half: int, columns: int, format: str
) -> None:
    weight = make_weight(2 * half, columns, format, 64 if format == "int8" else 0)
    layout = plan_panels(weight, level, interleaved=True)
    found = turned_back(unpack(packed_bytes(weight, layout, level), layout, level, 64), weight)
    expected = fake_quantize(weight.load(), format, 64, weight.rotation)
    side = level.panel // 2
    cut = found.reshape(layout.panels, 2, side, layout.k)
    for index in (0, 1):
        part = cut[:, index].reshape(-1, layout.k)
        np.testing.assert_array_equal(
            part[:half, :columns], expected[index * half : (index + 1) * half]
        )
        assert not part[half:].any()
    assert layout.panels == -(-half // side)


@few_examples
@given(level=levels, rows=st.integers(1, 70), interleaved=st.booleans())
def test_a_bias_follows_the_columns_of_its_product(
    level: IsaLevel, rows: int, interleaved: bool
) -> None:
    rows *= 2
    array = np.arange(1, rows + 1, dtype=np.float32)
    bias = Weight("b", (rows,), lambda: array)
    layout = plan_bias(bias, level, interleaved)
    matrix = Weight("w", (rows, 2), lambda: np.stack([array, -array], axis=1))
    panels = plan_panels(matrix, level, interleaved)
    columns = unpack(packed_bytes(matrix, panels, level), panels, level, 0)
    found = packed_bytes(bias, layout, level).view(np.float32)
    np.testing.assert_array_equal(found, columns[:, 0])


@pytest.mark.parametrize("format", ["f32", "bf16"])
@pytest.mark.parametrize("columns", [1, 31, 32, 100])
def test_tables_lie_row_by_row_in_whole_cache_lines(format: str, columns: int) -> None:
    weight = make_weight(7, columns, format)
    layout = plan_table(weight)
    assert layout.panel_bytes % 64 == 0
    element = np.float32 if format == "f32" else ml_dtypes.bfloat16
    found = packed_bytes(weight, layout, LEVELS[0]).view(element).reshape(7, -1)
    expected = fake_quantize(weight.load(), format, 0)
    np.testing.assert_array_equal(found[:, :columns].astype(np.float32), expected)
    assert not found[:, columns:].astype(bool).any()


def test_a_vector_is_its_own_bytes() -> None:
    array = np.arange(5, dtype=np.float32)
    weight = Weight("norm", (5,), lambda: array)
    layout = plan_table(weight)
    assert layout.kind == "vector"
    np.testing.assert_array_equal(packed_bytes(weight, layout, LEVELS[0]).view(np.float32), array)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("format", ["f32", "bf16", "int8", "uint4", "fp8"])
def test_the_size_of_a_piece_changes_nothing(
    level: IsaLevel, interleaved: bool, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = make_weight(300, 64, format, 64 if format == "int8" else 0)
    layout = plan_panels(weight, level, interleaved)
    whole = packed_bytes(weight, layout, level)
    monkeypatch.setattr(pack_module, "_ROWS_AT_A_TIME", 70)
    np.testing.assert_array_equal(packed_bytes(weight, layout, level), whole)


def test_a_weight_of_zeros_and_one_of_extremes() -> None:
    level = LEVELS[0]
    zeros = np.zeros((40, 64), np.float32)
    weight = Weight("w", (40, 64), lambda: zeros)
    weight.format, weight.group = "int8", 64
    layout = plan_panels(weight, level, interleaved=False)
    assert not unpack(packed_bytes(weight, layout, level), layout, level, 64).any()
    large = np.where(np.arange(64) % 2, 3e38, -3e38).astype(np.float32) * np.ones(
        (40, 1), np.float32
    )
    weight = Weight("w", (40, 64), lambda: large)
    weight.format, weight.group = "int8", 64
    found = unpack(packed_bytes(weight, layout, level), layout, level, 64)[:40]
    np.testing.assert_allclose(found, large, rtol=1 / 127)
