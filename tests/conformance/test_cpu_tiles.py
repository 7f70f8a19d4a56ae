"""AMX: products on tiles, whose instructions are emulated, have the bits of the vector kernels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from enginewright.builder.targets.cpu.isa import LEVELS
from enginewright.runtime import machine
from tests.support.cpu_kernels import SOURCES, Kernels
from tests.support.product_twin import assert_close, random, seen_by_product

VECTORS = next(level for level in LEVELS if level.name == "avx512-bf16")
ROWS = (0, 1, 15, 16, 17, 33, 96, 130)  # no tile, one, two, and more than a span of them

pytestmark = pytest.mark.skipif(
    not set(VECTORS.features) <= machine.detect().features,
    reason=f"the vector kernels beside the tiles need {VECTORS.name}",
)


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The kernels of the level amx, with tile instructions in C."""
    amx = next(level for level in LEVELS if level.name == "amx")
    level = dataclasses.replace(VECTORS, name="tiles", macros=amx.macros, dot_bf16=amx.dot_bf16)
    emulation = ("-include", str(SOURCES / "tiles.h"))
    return Kernels(level, tmp_path_factory.mktemp("tiles"), emulation)


@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize("format", ["int8", "bf16"])
@pytest.mark.parametrize("k", [75, 256, 2100])
def test_tiles_have_the_bits_of_vectors(
    tiled: Kernels, format: str, k: int, swiglu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine uses the vectors where the system does not let it use the tiles."""
    x, weight, bias = random(130, k), random(70, k, seed=1), random(70, seed=2)
    x[:, :20] *= np.float32(1e-38)
    for rows in ROWS:
        found: list[np.ndarray] = []
        for tiles in (True, False):
            monkeypatch.setattr(tiled, "tiles", tiles)
            found.append(tiled.gemm(x[:rows], weight, format, swiglu=swiglu, bias=bias))
        on_tiles, on_vectors = (y.view(np.uint32) for y in found)
        np.testing.assert_array_equal(on_tiles, on_vectors, str(rows))


@pytest.mark.parametrize("format", ["int8", "bf16", "fp8", "uint4"])
@pytest.mark.parametrize("rows", ROWS)
def test_products_of_a_level_with_tiles(tiled: Kernels, format: str, rows: int) -> None:
    x, weight, residual = random(rows, 131), random(50, 131, seed=1), random(rows, 50, seed=2)
    found = tiled.gemm(x, weight, format, residual=residual)
    seen_x, seen_weight = seen_by_product(tiled, x, weight, format)
    assert_close(found[:, :50], seen_x @ seen_weight.T + residual, 1e-5)
    for first, last in ((0, 1), (3, 20), (20, 59)):
        some = tiled.gemm(x[first:last], weight, format, residual=residual[first:last])
        np.testing.assert_array_equal(some.view(np.uint32), found[first:last].view(np.uint32))


def test_tiles_sum_bf16_by_the_rules_of_their_instruction(tiled: Kernels) -> None:
    """32 elements in two chains, even and odd, then the sum of both to the rest."""
    x, weight = random(20, 100), random(40, 100, seed=1)
    seen_x, seen_weight = seen_by_product(tiled, x, weight, "bf16")
    total = np.zeros((20, 40), np.float32)
    for start in range(0, 100, 32):
        sums = np.zeros((2, 20, 40), np.float32)
        for i in range(start, min(start + 32, 100)):
            product = seen_x[:, None, i] * seen_weight[None, :, i]  # exact in doubles
            sums[i % 2] = (sums[i % 2] + product).astype(np.float32)
        total += sums[0] + sums[1]
    np.testing.assert_array_equal(tiled.gemm(x, weight, "bf16")[:, :40], total)
