"""Weight-only quantization: how far a weight may move, and what comes back as it was."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from enginewright.builder.quantize.weight_only import (
    fake_quantize,
    quantize_fp8,
    quantize_int4,
    quantize_uint4,
    round_f16,
)

WEIGHT = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)


def test_int4_has_fifteen_values_and_a_scale_a_group() -> None:
    integers, scales = quantize_int4(WEIGHT, 32)
    assert integers.shape == (6, 64)
    assert scales.shape == (6, 2)
    assert set(np.unique(integers)) <= set(range(-7, 8))
    assert np.abs(integers).max() == 7


def test_fp8_reaches_its_largest_number_in_every_row() -> None:
    values, scales = quantize_fp8(WEIGHT)
    assert scales.shape == (6, 1)
    assert np.all(np.abs(values.astype(np.float32)).max(axis=1) > 440)


@pytest.mark.parametrize(
    ("format", "group", "step"),
    [
        ("f16", 0, 2**-11),
        ("fp8", 0, 2**-4),
        ("int8", 0, 1 / 127),
        ("int4", 32, 1 / 7),
        ("uint4", 32, 2 / 15),
    ],
)
def test_the_error_is_half_a_step(format: str, group: int, step: float) -> None:
    error = np.abs(fake_quantize(WEIGHT, format, group) - WEIGHT)
    assert error.max() <= 0.51 * step * np.abs(WEIGHT).max() * 1.01
    assert error.max() > 0


@pytest.mark.parametrize("format", ["f16", "fp8", "int8", "int4", "uint4"])
def test_zeros_stay_zeros(format: str) -> None:
    assert not fake_quantize(np.zeros((2, 32), np.float32), format, 32).any()


def test_f16_has_a_largest_number() -> None:
    assert round_f16(np.array([1e6, -1e6])).tolist() == [65504, -65504]


def random(rows: int, columns: int) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng([rows, columns])
    return generator.standard_normal((rows, columns)).astype(np.float32)


def test_uint4_errs_by_at_most_half_a_step() -> None:
    weight = random(20, 70)
    integers, scales, minima = quantize_uint4(weight, 32)
    assert integers.shape == (20, 96)
    assert integers.max() <= 15
    assert scales.shape == minima.shape == (20, 3)
    error = np.abs(fake_quantize(weight, "uint4", 32) - weight)
    steps = np.repeat(scales, 32, axis=1)[:, :70]
    assert (error <= steps * 0.51 + np.abs(weight).max() * 2**-11).all()


@pytest.mark.parametrize("minimum", [-8.0, 0.0, 3.0])
def test_sixteen_even_values_come_back_as_they_were(minimum: float) -> None:
    values = np.random.default_rng(0).integers(0, 16, (30, 64)).astype(np.float32)
    values.reshape(30, 2, 32)[:, :, :2] = (0, 15)  # groups that use their whole range
    weight = values * np.float32(0.0625) + np.float32(minimum * 0.0625)
    np.testing.assert_array_equal(fake_quantize(weight, "uint4", 32), weight)


def test_a_group_of_one_value() -> None:
    weight = np.full((2, 64), 0.25, np.float32)
    weight[1] = 0
    np.testing.assert_array_equal(fake_quantize(weight, "uint4", 32), weight)


def test_numbers_beyond_half_precision_stay_finite() -> None:
    weight = np.where(np.arange(64) % 2, 1e6, -1e6).astype(np.float32)[None]
    assert np.isfinite(fake_quantize(weight, "uint4", 32)).all()


def test_fewer_bits_err_more() -> None:
    weight = random(50, 256)
    errors = [
        float(np.square(fake_quantize(weight, name, group, rotation) - weight).mean())
        for name, group, rotation in (
            ("f32", 0, 0),
            ("f16", 0, 0),
            ("bf16", 0, 0),
            ("int8", 256, 64),
            ("fp8", 0, 0),
            ("uint4", 32, 0),
            ("int4", 32, 0),
        )
    ]
    assert errors[0] == 0
    assert errors == sorted(errors)
