"""Rotary embedding tables: frequencies of every scaling kind, in float64."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .model_config import RopeScaling
from .network import NetworkError

Float64Array = npt.NDArray[np.float64]


def rope_table(
    head_dim: int, theta: float, scaling: RopeScaling | None, positions: int
) -> npt.NDArray[np.float32]:
    """Return [positions, head_dim]: cos of head_dim/2 angles, then sin of the same.

    The angle of position p and pair i is p * frequency[i] (RoFormer, arXiv:2104.09864); pair i is
    made of elements i and i + head_dim/2. yarn's attention factor is folded into both halves.
    """
    angles = np.outer(np.arange(positions, dtype=np.float64), frequencies(head_dim, theta, scaling))
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return (table * attention_factor(scaling)).astype(np.float32)


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Float64Array:
    """Return the head_dim/2 angles by which one position turns each pair, in radians."""
    plain = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    return _yarn(plain, theta, head_dim, scaling)


def attention_factor(scaling: RopeScaling | None) -> float:
    """Return what queries and keys are multiplied by: 1 but for yarn (arXiv:2309.00071, eq. 22)."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1.0 else 1.0


def _llama3(plain: Float64Array, scaling: RopeScaling) -> Float64Array:
    """Meta's rule (`apply_scaling` of the Llama 3.1 release).

    Waves longer than original/low_freq_factor are stretched by the factor, those shorter than
    original/high_freq_factor are kept, and in between the two blend linearly in 1/wavelength.
    """
    low, high = _given(scaling.low_freq_factor), _given(scaling.high_freq_factor)
    waves_in_context = _given(scaling.original_max_position) * plain / (2 * math.pi)
    keep = np.clip((waves_in_context - low) / (high - low), 0.0, 1.0)
    return keep * plain + (1.0 - keep) * plain / scaling.factor


def _yarn(plain: Float64Array, theta: float, head_dim: int, scaling: RopeScaling) -> Float64Array:
    """NTK-by-parts (arXiv:2309.00071, section 3.2), with the bounds rounded outwards.

    Pairs that turn more than beta_fast times within the original context are kept, those that turn
    less than beta_slow times are stretched by the factor, with a linear ramp between the two.
    """
    original = _given(scaling.original_max_position)
    beta_fast = 32.0 if scaling.beta_fast is None else scaling.beta_fast
    beta_slow = 1.0 if scaling.beta_slow is None else scaling.beta_slow

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(beta_slow)), head_dim - 1)
    width = high - low if high != low else 0.001  # equal bounds: a step instead of a ramp
    stretch = np.clip((np.arange(head_dim // 2, dtype=np.float64) - low) / width, 0.0, 1.0)
    return (1.0 - stretch) * plain + stretch * plain / scaling.factor


def _given(value: float | None) -> float:
    if value is None:
        raise NetworkError("a rope scaling lacks a field of its kind; the converter lets none pass")
    return value
