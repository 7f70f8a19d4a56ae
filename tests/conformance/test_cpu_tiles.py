"""AMX: products on tiles, whose instructions are emulated, have the bits of the vector kernels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support.cpu_engine import LEVELS
from tests.support.cpu_kernels import SOURCES, Kernels
from tests.support.product_twin import random

VECTOR_LEVELS = [level for level in LEVELS if level.name == "avx512-bf16"]


@pytest.fixture(scope="module", params=VECTOR_LEVELS, ids=lambda level: level.name)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Kernels, Kernels]:
    """The kernels of the level below amx, and the same with tiles."""
    level, folder = request.param, tmp_path_factory.mktemp("tiles")
    tiled = dataclasses.replace(level, name="tiles", macros=(*level.macros, "EW_HAS_AMX"))
    emulation = ("-include", str(SOURCES / "tiles.h"))
    return Kernels(level, folder), Kernels(tiled, folder, emulation)


@pytest.mark.parametrize("format", ["int8", "uint4", "bf16"])
@pytest.mark.parametrize("k", [75, 256, 2100])
def test_tiles_have_the_bits_of_vectors(
    both: tuple[Kernels, Kernels], format: str, k: int
) -> None:
    """One row, rows that fill no tile, one, two, and more than a span of them."""
    vectors, tiles = both
    x, weight, bias = random(130, k), random(70, k, seed=1), random(70, seed=2)
    for rows in (0, 1, 15, 16, 17, 33, 96, 130):
        found, expected = (
            kernels.gemm(x[:rows], weight, format, bias=bias, residual=x[:rows, :70])
            for kernels in (tiles, vectors)
        )
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), str(rows))


def test_gated_products_on_tiles(both: tuple[Kernels, Kernels]) -> None:
    x, weight = random(37, 300), random(100, 300, seed=1)
    found, expected = (kernels.gemm(x, weight, "int8", swiglu=True) for kernels in both)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
