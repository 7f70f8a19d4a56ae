"""Products in numpy: what the kernels of every format must give, up to the order of float sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from enginewright.builder.quantize.weight_only import fake_quantize, round_bf16
from enginewright.builder.reference_ops import QuantizedRows
from enginewright.builder.targets.cpu.pack import DOT_FORMATS

from .cpu_kernels import FORMAT_GROUPS, Kernels, padded


def random(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return normal numbers that depend on shape and seed alone."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def dequantize(
    rows: npt.NDArray[np.uint8], k: int, group: int, rotation: int
) -> npt.NDArray[np.float32]:
    """Return what quantized rows stand for, as numpy reads them."""
    scales = np.ascontiguousarray(rows[:, k:]).view(np.float32)[:, : k // group]
    values = np.ascontiguousarray(rows[:, :k]).view(np.int8)
    return QuantizedRows(values, scales, group, k, rotation).dequantize()


def seen_by_product(
    kernels: Kernels, x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32], format: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return activations and weights as a product in that format sees them."""
    group, rotation = FORMAT_GROUPS[format]
    if group:
        k = -(-x.shape[1] // group) * group
        # the kernel's own: a tie may be rounded either way, and rotated rows have many alike
        x = dequantize(kernels.quantize(x, format), k, group, rotation)
        # padding takes part: what rounding leaves there on both sides is multiplied too
        weight = padded(weight, k)
    elif kernels.level.dot_bf16 and format in DOT_FORMATS:
        x = round_bf16(x)
    weight = fake_quantize(weight, format, group, rotation)
    return x.astype(np.float64), weight.astype(np.float64)


def assert_close(found: Any, expected: Any, tolerance: float = 2e-6) -> None:
    """Fail where two arrays differ by more than a share of the largest number, or of 1."""
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)
