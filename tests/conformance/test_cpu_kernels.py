"""Every CPU kernel against its numpy twin, at every instruction set that this machine runs."""

from __future__ import annotations

from ctypes import c_float, c_int32, c_size_t, c_void_p
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginewright.builder import reference_ops
from enginewright.builder.quantize.weight_only import quantize_fp8, round_bf16
from enginewright.builder.reference_ops import quantize
from tests.support.cpu_kernels import FORMATS, GROUP, ROTATION, Kernels, address, padded
from tests.support.product_twin import assert_close, random, seen_by_product

rms_norm: Any = reference_ops.rms_norm  # called with doubles here
silu: Any = reference_ops.silu
few_examples = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def test_the_headers_have_the_facts_that_the_builder_packs_for(kernels: Kernels) -> None:
    facts = np.zeros(5, np.int32)
    kernels.library.test_facts(c_void_p(address(facts)))
    level = kernels.level
    expected = [level.lanes, level.panel, level.offset, level.max_rows, level.dot_bf16]
    assert facts.tolist() == expected


@pytest.mark.parametrize("format", FORMATS)
@few_examples
@given(rows=st.integers(0, 70), n=st.integers(1, 90), k=st.integers(1, 300), bias=st.booleans())
def test_products(kernels: Kernels, format: str, rows: int, n: int, k: int, bias: bool) -> None:
    x, weight = random(rows, k), random(n, k, seed=1)
    offsets = random(n, seed=2) if bias else None
    residual = random(rows, n, seed=3)
    found = kernels.gemm(x, weight, format, bias=offsets, residual=residual)
    seen_x, seen_weight = seen_by_product(kernels, x, weight, format)
    expected = seen_x @ seen_weight.T + residual + (0 if offsets is None else offsets)
    assert_close(found[:, :n], expected, 1e-5)
    assert not found[:, n:].any()  # padding columns are products with zeros


@pytest.mark.parametrize("format", FORMATS)
@few_examples
@given(rows=st.integers(1, 40), n=st.integers(1, 50), k=st.integers(1, 200), bias=st.booleans())
def test_gated_products(
    kernels: Kernels, format: str, rows: int, n: int, k: int, bias: bool
) -> None:
    x, weight = random(rows, k), random(2 * n, k, seed=1)
    offsets = random(2 * n, seed=2) if bias else None
    found = kernels.gemm(x, weight, format, swiglu=True, bias=offsets)[:, :n]
    seen_x, seen_weight = seen_by_product(kernels, x, weight, format)
    both = seen_x @ seen_weight.T + (0 if offsets is None else offsets)
    assert_close(found, silu(both[:, :n], {}) * both[:, n:], 1e-5)


def dot_bf16(
    x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """The product of rows and weights that are bf16, by the rules of the instruction.

    Two chains of every other pair of k, in each pair the odd element first, every product fused
    with its sum. A product of two bf16 is exact in doubles, and so, nearly always, is that sum.
    """
    x, weight = padded(x, -(-x.shape[1] // 4) * 4), padded(weight, -(-x.shape[1] // 4) * 4)
    sums = np.zeros((2, len(x), len(weight)), np.float32)
    for i in range(x.shape[1]):
        at = i ^ 1
        product = x[:, None, at].astype(np.float64) * weight[None, :, at]
        sums[at // 2 % 2] = (sums[at // 2 % 2] + product).astype(np.float32)
    return sums[0] + sums[1]


@pytest.mark.parametrize(("rows", "n", "k"), [(1, 33, 1), (1, 5, 130), (7, 64, 75), (20, 40, 256)])
def test_bf16_products_have_the_bits_of_their_definition(
    dot_kernels: Kernels, rows: int, n: int, k: int
) -> None:
    x, weight = random(rows, k), random(n, k, seed=1)
    found = dot_kernels.gemm(x, weight, "bf16")[:, :n]
    np.testing.assert_array_equal(found, dot_bf16(round_bf16(x), round_bf16(weight)))
    values, scales = quantize_fp8(weight)
    found = dot_kernels.gemm(x, weight, "fp8")[:, :n]
    expected = dot_bf16(round_bf16(x), values.astype(np.float32)) * scales[:, 0]
    np.testing.assert_array_equal(found, expected)


def test_every_number_of_fp8_is_decoded_exactly(kernels: Kernels) -> None:
    codes = np.delete(np.arange(256, dtype=np.uint8), [127, 255])  # which are no numbers
    numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    weight = np.stack([np.roll(numbers, i) for i in range(40)])
    weight = np.pad(weight, ((0, 0), (0, 2)))
    unit = np.eye(256, dtype=np.float32)
    np.testing.assert_array_equal(kernels.gemm(unit, weight, "fp8")[:, :40], weight.T)


@few_examples
@given(rows=st.integers(1, 4), n=st.integers(1, 70))
def test_rounding_to_bf16(dot_kernels: Kernels, rows: int, n: int) -> None:
    x = (random(rows, n) * 10.0 ** random(rows, 1, seed=1)).astype(np.float32)
    x[0, n // 2], x[-1, n - 1] = 1 + 2.0**-8, np.inf  # a tie goes to even
    found = dot_kernels.round_bf16(x).astype(np.float32)
    np.testing.assert_array_equal(found[:, :n], round_bf16(x))
    assert not found[:, n:].any()
    x[0, n - 1] = np.nan
    assert np.isnan(dot_kernels.round_bf16(x)[0, n - 1])
    some = dot_kernels.round_bf16(np.repeat(x, 3, axis=0), first=1, last=2).view(np.uint16)
    assert (some[[0, *range(2, 3 * rows)]] == 0xA5A5).all()


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_of_a_product_has_the_same_bits_in_any_company(kernels: Kernels, format: str) -> None:
    x, weight = random(75, 300), random(77, 300, seed=1)
    everything = kernels.gemm(x, weight, format)
    for first, last in ((0, 1), (3, 5), (5, 8), (8, 12), (1, 23), (40, 56), (7, 39), (9, 75)):
        some = kernels.gemm(x[first:last], weight, format)
        np.testing.assert_array_equal(some.view(np.uint32), everything[first:last].view(np.uint32))


@pytest.mark.parametrize("k", [2048, 4096, 4100])
def test_fp8_panels_are_decoded_once_or_for_each_block(kernels: Kernels, k: int) -> None:
    """Those of many columns are too large for the cache once they are decoded."""
    x, weight = random(9, k), random(33, k, seed=1)
    everything = kernels.gemm(x, weight, "fp8")
    for row in range(9):
        one = kernels.gemm(x[row : row + 1], weight, "fp8")
        np.testing.assert_array_equal(one[0].view(np.uint32), everything[row].view(np.uint32))


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_and_prefetches_change_no_bit(kernels: Kernels, format: str) -> None:
    x, weight = random(29, 300), random(77, 300, seed=1)
    expected = kernels.gemm(x, weight, format).view(np.uint32)
    for rows in range(1, kernels.level.max_rows + 1):
        found = kernels.gemm(x, weight, format, block_rows=rows, ahead=rows % 2 == 0)
        np.testing.assert_array_equal(found.view(np.uint32), expected)


def test_a_product_writes_its_own_panels_only(kernels: Kernels) -> None:
    x, weight, panel = random(3, 40), random(100, 40, seed=1), kernels.level.panel
    found = kernels.gemm(x, weight, "f32", panels=(1, 2), guard=7.0)
    expected = kernels.gemm(x, weight, "f32")
    np.testing.assert_array_equal(found[:, panel : 2 * panel], expected[:, panel : 2 * panel])
    assert (np.delete(found, np.s_[panel : 2 * panel], axis=1) == 7).all()
    assert (kernels.gemm(x, weight, "f32", panels=(2, 2), guard=7.0) == 7).all()


@few_examples
@given(rows=st.integers(1, 30), vocab=st.integers(2, 400), most=st.integers(1, 64))
def test_the_head_keeps_the_highest(kernels: Kernels, rows: int, vocab: int, most: int) -> None:
    x, weight = random(rows, 40), random(vocab, 40, seed=1)
    weight[vocab // 2 :] = weight[: vocab - vocab // 2]  # ties go to the lower id
    wanted = np.full(rows, most, np.uint8)
    wanted[::3] = 0
    wanted[1::3] = 255
    found = kernels.head(x, weight, wanted, guard=7.0)
    logits = kernels.gemm(x, weight, "f32")[:, :vocab]
    for row in range(rows):
        order = np.lexsort((np.arange(vocab), -logits[row]))
        assert found.highest[row] == order[0]
        kept = order[:most].tolist() if wanted[row] == most else []
        assert found.top[row].tolist() == [*kept, *[-1] * (64 - len(kept))]
        stored = found.logits[row, :vocab]
        np.testing.assert_array_equal(stored, logits[row] if wanted[row] == 255 else 7.0)


@few_examples
@given(rows=st.integers(1, 5), n=st.integers(1, 300), zeros=st.booleans())
def test_quantization(kernels: Kernels, rows: int, n: int, zeros: bool) -> None:
    x = (random(rows, n) * 10.0 ** random(rows, 1, seed=1)).astype(np.float32)
    if zeros:
        x[:, :GROUP] = 0
    k = -(-n // GROUP) * GROUP
    expected = quantize(x, {"group": GROUP, "rotation": ROTATION})
    found = kernels.quantize(x)
    values = found[:, :k].view(np.int8).astype(int)
    scales = np.ascontiguousarray(found[:, k:]).view(np.float32)[:, : k // GROUP]
    sums = np.ascontiguousarray(found[:, k:]).view(np.int32)[:, k // GROUP :]
    np.testing.assert_allclose(scales, expected.scales, rtol=2e-7)
    # the kernel multiplies by an inverse: a value within an ulp of a tie may round either way
    assert np.abs(values - expected.values).max() <= 1
    assert (values != expected.values).mean() < 0.01 or n < 100
    rotated = -(-n // ROTATION) * ROTATION  # zeros that are rotated with others are zeros no more
    assert not values[:, rotated:].any()
    assert np.abs(values).max() <= 127
    totals = values.reshape(rows, -1, GROUP).sum(axis=2)
    np.testing.assert_array_equal(sums, -kernels.level.offset * totals)


def test_rows_for_uint4_weights(kernels: Kernels) -> None:
    x = random(3, 75)
    expected = quantize(x, {"group": 32, "rotation": 0})
    found = kernels.quantize(x, "uint4")
    values = found[:, :96].view(np.int8)
    facts = np.ascontiguousarray(found[:, 96:]).view(np.float32)
    assert np.abs(values.astype(int) - expected.values).max() <= 1
    np.testing.assert_allclose(facts[:, :3], expected.scales, rtol=2e-7)
    sums = values.astype(np.float32).reshape(3, 3, 32).sum(axis=2) * facts[:, :3]
    np.testing.assert_array_equal(facts[:, 3:], sums)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_group_that_is_not_finite_has_a_scale_of_nan(kernels: Kernels, broken: float) -> None:
    for place in (0, 127, 128, 140, 255, 256, 269):
        x = random(2, 270)
        x[1, place] = broken
        found = kernels.quantize(x)
        scales = np.ascontiguousarray(found[:, 384:]).view(np.float32)[:, :3]
        np.testing.assert_array_equal(np.isnan(scales[1]), [place // GROUP == g for g in range(3)])
        assert np.isfinite(scales[0]).all()
        assert np.isnan(kernels.gemm(x, random(5, 270), "int8")[1, :5]).all()


def test_rows_outside_a_range_are_not_written(kernels: Kernels) -> None:
    x = random(5, 64)
    everything = kernels.quantize(x)
    some = kernels.quantize(x, first=1, last=3)
    np.testing.assert_array_equal(some[1:3], everything[1:3])
    assert (some[[0, 3, 4]] == 0xA5).all()
    assert (kernels.quantize(x, first=2, last=2) == 0xA5).all()


@few_examples
@given(rows=st.integers(1, 4), runs=st.integers(1, 4), width=st.integers(1, 70))
def test_rms_norm(kernels: Kernels, rows: int, runs: int, width: int) -> None:
    x, weight = random(rows, runs * width), random(width, seed=1)
    out = np.empty_like(x)
    facts = (c_int32(runs * width), c_int32(width), c_float(1e-5))
    kernels.row_op("rms_norm", x, out, c_void_p(address(weight)), *facts)
    expected = rms_norm(x.astype(np.float64), weight.astype(np.float64), {"eps": 1e-5})
    assert_close(out, expected)


@few_examples
@given(rows=st.integers(1, 5), n=st.integers(1, 100))
def test_a_norm_that_rounds_has_the_bits_of_a_norm_and_a_rounding(
    kernels: Kernels, rows: int, n: int
) -> None:
    n *= 4
    x, weight = random(rows, n), random(n, seed=1)
    normed = np.empty_like(x)
    row = c_void_p(address(weight)), c_int32(n), c_int32(n), c_float(1e-5)
    kernels.row_op("rms_norm", x, normed, *row)
    expected = kernels.quantize(normed)
    found = np.full_like(expected, 0x5A)
    k = -(-n // GROUP) * GROUP
    facts = c_void_p(address(weight)), c_float(1e-5), c_int32(n), c_int32(k)
    kernels.row_op("rms_norm_quantize", x, found, *facts)
    np.testing.assert_array_equal(found, expected)


@few_examples
@given(rows=st.integers(1, 70), n=st.integers(1, 300), k=st.integers(1, 200), bias=st.booleans())
def test_a_gated_product_that_rounds_has_the_bits_of_a_product_and_a_rounding(
    kernels: Kernels, rows: int, n: int, k: int, bias: bool
) -> None:
    x, weight = random(rows, k), random(2 * n, k, seed=1)
    offsets = random(2 * n, seed=2) if bias else None
    gated = kernels.gemm(x, weight, "int8", swiglu=True, bias=offsets)[:, :n]
    expected = kernels.quantize(np.ascontiguousarray(gated))
    found = np.full_like(expected, 0x5A)
    kernels.gemm(x, weight, "int8", swiglu=True, bias=offsets, rounded=found)
    np.testing.assert_array_equal(found, expected)


@few_examples
@given(heads=st.integers(1, 4), half=st.integers(1, 40), rows=st.integers(1, 4))
def test_rope(kernels: Kernels, heads: int, half: int, rows: int) -> None:
    x, table = random(rows, heads * 2 * half), random(9, 2 * half + 5, seed=1)
    positions = np.array([8, 0, 3, 3], np.int32)
    out = np.empty_like(x)
    at = (c_void_p(address(table)), c_size_t(2 * half + 5), c_void_p(address(positions)))
    kernels.row_op("rope", x, out, *at, c_int32(heads), c_int32(2 * half))
    first, second = x.reshape(rows, heads, 2, half).transpose(2, 0, 1, 3).astype(np.float64)
    cos, sin = (table[positions[:rows], None, i * half : (i + 1) * half] for i in (0, 1))
    turned = np.stack([first * cos - second * sin, second * cos + first * sin], axis=2)
    assert_close(out, turned.reshape(out.shape), 1e-6)


@pytest.mark.parametrize(("kind", "name"), [*enumerate(["add", "mul", "silu", "silu_mul"])])
@pytest.mark.parametrize("n", [16, 32, 48])
def test_elementwise(kernels: Kernels, kind: int, name: str, n: int) -> None:
    a, b, out = random(3, n) * 20, random(3, n, seed=1), np.empty((3, n), np.float32)
    a[0, :4] = (-200, -88, 0, 200)
    args: list[Any] = [c_int32(kind)]
    for array in (a, b, out):
        args += [c_void_p(address(array)), c_size_t(array.strides[0])]
    kernels.library.test_elementwise(*args, c_int32(n), c_int32(0), c_int32(3))
    gate = silu(a.astype(np.float64), {})
    expected = {"add": a + b, "mul": a * b, "silu": gate, "silu_mul": gate * b}[name]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-30)  # e^x has the error of x


def test_exp2(kernels: Kernels) -> None:
    x = np.concatenate([np.linspace(-126, 1, 4000), [-126.5, -1000, -np.inf, 0, -1, -0.5]])
    x = x.astype(np.float32)
    found = np.empty_like(x)
    kernels.library.test_exp2(c_void_p(address(x)), c_void_p(address(found)), len(x))
    exact = np.exp2(x.astype(np.float64))
    np.testing.assert_allclose(found, exact, rtol=3e-7, atol=1.2e-38)  # the least normal number
    assert found[-3] == 1
