"""Weight-only quantization: how far a weight may move, and what comes back as it was."""

import numpy as np
import pytest

from enginewright.builder.quantize.formats import FORMATS
from enginewright.builder.quantize.weight_only import fake_quantize, quantize_int4


def random(rows: int, columns: int) -> np.ndarray:
    generator = np.random.default_rng([rows, columns])
    return generator.standard_normal((rows, columns)).astype(np.float32)


def test_int4_errs_by_at_most_half_a_step() -> None:
    weight = random(20, 70)
    integers, scales, minima = quantize_int4(weight, 32)
    assert integers.shape == (20, 96)
    assert integers.max() <= 15
    assert scales.shape == minima.shape == (20, 3)
    error = np.abs(fake_quantize(weight, "int4", 32) - weight)
    steps = np.repeat(scales, 32, axis=1)[:, :70]
    assert (error <= steps * 0.51 + np.abs(weight).max() * 2**-11).all()


@pytest.mark.parametrize("minimum", [-8.0, 0.0, 3.0])
def test_sixteen_even_values_come_back_as_they_were(minimum: float) -> None:
    values = np.random.default_rng(0).integers(0, 16, (30, 64)).astype(np.float32)
    values.reshape(30, 2, 32)[:, :, :2] = (0, 15)  # groups that use their whole range
    weight = values * np.float32(0.0625) + np.float32(minimum * 0.0625)
    np.testing.assert_array_equal(fake_quantize(weight, "int4", 32), weight)


def test_a_group_of_one_value() -> None:
    weight = np.full((2, 64), 0.25, np.float32)
    weight[1] = 0
    np.testing.assert_array_equal(fake_quantize(weight, "int4", 32), weight)


def test_numbers_beyond_half_precision_stay_finite() -> None:
    weight = np.where(np.arange(64) % 2, 1e6, -1e6).astype(np.float32)[None]
    assert np.isfinite(fake_quantize(weight, "int4", 32)).all()


def test_fewer_bits_err_more() -> None:
    weight = random(50, 256)
    errors = [
        float(
            np.square(
                fake_quantize(weight, name, form.group(256, 256), form.rotation) - weight
            ).mean()
        )
        for name, form in FORMATS.items()
    ]
    assert errors[0] == 0
    assert errors == sorted(errors)
