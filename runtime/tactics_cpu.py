"""Tactics of a CPU engine: how its steps and products are cut. None of them changes a bit."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from .errors import EngineDamagedError

BUCKETS = (1, 2, 4, 8, 16, 32, 64)  # most rows of each bucket; one more has all above
AHEAD = 16  # EW_AHEAD of plugins/cpu/engine.h
TILE_UNIT = 16  # rows; tiles are multiples of it


class ProductTactics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One product of the emitted code; lists have an entry a bucket of rows."""

    name: str
    block_rows: list[int]  # rows that are multiplied at once
    prefetch: list[bool]
    microseconds: list[float] = []  # of one call, all threads added up, where it was measured


class CpuTactics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tactics` in the manifest of a CPU engine; plugins/cpu/engine.h says what each one does."""

    chosen_by: str  # "cost model", or what was measured where
    tile_rows: int
    column_rows: int
    redundant_rows: int
    products: list[ProductTactics]

    def table(self) -> npt.NDArray[np.uint8]:
        """Return the choices as the engine reads them, [products, buckets]."""
        rows = [
            [count + AHEAD * ahead for count, ahead in zip(p.block_rows, p.prefetch, strict=True)]
            for p in self.products
        ]
        return np.array(rows, np.uint8).reshape(len(rows), len(BUCKETS) + 1)


def read_tactics(tactics: dict[str, Any], products: int, max_rows: int) -> CpuTactics:
    """Read a manifest's tactics for code with so many products and rows of a block.

    Raises EngineDamagedError where they do not fit the code.
    """
    try:
        found = msgspec.convert(tactics, CpuTactics)
    except msgspec.ValidationError as error:
        raise EngineDamagedError(f"the engine's tactics: {error}; build it again") from error
    buckets = len(BUCKETS) + 1
    sizes = {len(p.block_rows) for p in found.products} | {len(p.prefetch) for p in found.products}
    fits = (
        len(found.products) == products
        and sizes <= {buckets}
        and all(1 <= rows <= max_rows for p in found.products for rows in p.block_rows)
        and found.tile_rows >= TILE_UNIT
        and found.tile_rows % TILE_UNIT == 0
        and 0 <= found.redundant_rows <= found.tile_rows
        and found.column_rows >= 1
    )
    if not fits:
        raise EngineDamagedError(
            f"the engine's tactics do not fit its code of {products} products in blocks of at most "
            f"{max_rows} rows; build it again"
        )
    return found
