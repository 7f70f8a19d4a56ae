"""Weight formats: integers for the stored scale, groups of their own, rows of zeros."""

from __future__ import annotations

import numpy as np
import pytest

from enginewright.builder.quantize.weight_only import (
    fake_quantize,
    quantize_fp8,
    quantize_int4,
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
    [("f16", 0, 2**-11), ("fp8", 0, 2**-4), ("int8", 0, 1 / 127), ("int4", 32, 1 / 7)],
)
def test_the_error_is_half_a_step(format: str, group: int, step: float) -> None:
    error = np.abs(fake_quantize(WEIGHT, format, group) - WEIGHT)
    assert error.max() <= 0.51 * step * np.abs(WEIGHT).max() * 1.01
    assert error.max() > 0


@pytest.mark.parametrize("format", ["f16", "fp8", "int8", "int4"])
def test_zeros_stay_zeros(format: str) -> None:
    assert not fake_quantize(np.zeros((2, 32), np.float32), format, 32).any()


def test_f16_has_a_largest_number() -> None:
    assert round_f16(np.array([1e6, -1e6])).tolist() == [65504, -65504]
