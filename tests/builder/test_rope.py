"""Rotary tables against independent, scalar formulas of each scaling kind."""

import cmath
import math
from collections.abc import Callable

import numpy as np
import pytest

from enginewright.builder.model_config import RopeScaling
from enginewright.builder.rope import attention_factor, frequencies, rope_table

DIM, THETA = 64, 10000.0
LLAMA3 = RopeScaling(
    "llama3", 8.0, original_max_position=512, low_freq_factor=1.0, high_freq_factor=4.0
)
YARN = RopeScaling("yarn", 4.0, original_max_position=512)


def plain(pair: int) -> float:
    return 1.0 / THETA ** (2 * pair / DIM)


def llama3(pair: int) -> float:
    frequency = plain(pair)
    wavelength = 2 * math.pi / frequency
    if wavelength < 512 / 4.0:
        return frequency
    if wavelength > 512 / 1.0:
        return frequency / 8.0
    smooth = (512 / wavelength - 1.0) / (4.0 - 1.0)
    return (1 - smooth) * frequency / 8.0 + smooth * frequency


def yarn(pair: int) -> float:
    def dimension(rotations: float) -> float:
        return DIM * math.log(512 / (rotations * 2 * math.pi)) / (2 * math.log(THETA))

    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), DIM - 1)
    ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
    return plain(pair) / 4.0 * ramp + plain(pair) * (1 - ramp)


@pytest.mark.parametrize(
    ("scaling", "formula"),
    [
        (None, plain),
        (RopeScaling("linear", 2.5), lambda pair: plain(pair) / 2.5),
        (LLAMA3, llama3),
        (YARN, yarn),
    ],
)
def test_frequencies_follow_the_formula(
    scaling: RopeScaling | None, formula: Callable[[int], float]
) -> None:
    expected = [formula(pair) for pair in range(DIM // 2)]
    np.testing.assert_allclose(frequencies(DIM, THETA, scaling), expected, rtol=1e-13)


@pytest.mark.parametrize("scaling", [LLAMA3, YARN])
def test_the_three_zones_of_a_scaling_are_all_used(scaling: RopeScaling) -> None:
    ratio = frequencies(DIM, THETA, scaling) / frequencies(DIM, THETA, None)
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(1 / scaling.factor)
    assert np.any((ratio < 0.99) & (ratio > 1.01 / scaling.factor))


def test_the_table_is_cosines_then_sines_of_exact_angles() -> None:
    table = rope_table(DIM, THETA, None, 8192)
    assert (table.shape, table.dtype) == ((8192, DIM), np.float32)
    for position, pair in ((0, 0), (1, 3), (8191, 0), (8191, 31)):
        turn = cmath.exp(1j * position * plain(pair))
        # One rounding to f32: the angle itself never was f32.
        assert table[position, pair] == pytest.approx(turn.real, abs=6e-8)
        assert table[position, DIM // 2 + pair] == pytest.approx(turn.imag, abs=6e-8)


def test_the_attention_factor_is_folded_in() -> None:
    assert attention_factor(None) == attention_factor(LLAMA3) == 1.0
    assert attention_factor(YARN) == pytest.approx(0.1 * math.log(4.0) + 1.0)
    given = RopeScaling("yarn", 4.0, original_max_position=512, attention_factor=0.7)
    assert rope_table(DIM, THETA, given, 1)[0, 0] == np.float32(0.7)
    assert attention_factor(RopeScaling("yarn", 1.0, original_max_position=512)) == 1.0


def test_equal_bounds_of_yarn_make_a_step() -> None:
    scaling = RopeScaling("yarn", 4.0, original_max_position=4, beta_fast=1e-9, beta_slow=1e-9)
    assert np.all(np.isfinite(frequencies(DIM, THETA, scaling)))
