"""Tactics as a manifest holds them: what does not fit the code is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from enginewright.builder.targets.cpu.calls import Product
from enginewright.builder.targets.cpu.isa import LEVELS, IsaLevel
from enginewright.builder.targets.cpu.tactics import cost_model
from enginewright.runtime.errors import EngineDamagedError
from enginewright.runtime.tactics_cpu import AHEAD, BUCKETS, CpuTactics, read_tactics

PRODUCTS = [Product("int8_256", "store", 64, 256), Product("f32", "head", 1000, 64)]


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_the_cost_models_choice_fits_every_level(level: IsaLevel) -> None:
    plain = msgspec.to_builtins(cost_model(PRODUCTS, level))
    tactics = read_tactics(plain, len(PRODUCTS), level.max_rows)
    table = tactics.table()
    assert table.shape == (2, len(BUCKETS) + 1)
    assert table[0].tolist() == table[1].tolist()
    assert table[0, 0] == 1 + AHEAD * (level.prefetch_rows == 1)
    assert table[0, -1] == level.max_rows + AHEAD


@pytest.mark.parametrize(
    "change",
    [
        {"tile_rows": 0},
        {"tile_rows": 40},
        {"redundant_rows": -1},
        {"redundant_rows": 97},
        {"column_rows": 0},
        {"tile_rows": "96"},
        {"other": 1},
        {"products": []},
    ],
    ids=str,
)
def test_what_does_not_fit_the_code_is_refused(change: dict[str, Any]) -> None:
    plain = {**msgspec.to_builtins(cost_model(PRODUCTS, LEVELS[0])), **change}
    with pytest.raises(EngineDamagedError, match="tactics"):
        read_tactics(plain, len(PRODUCTS), LEVELS[0].max_rows)


@pytest.mark.parametrize("rows", [[1] * 7, [0] * 8, [7] * 8])
def test_blocks_that_the_code_lacks_are_refused(rows: list[int]) -> None:
    usual = cost_model(PRODUCTS, LEVELS[0])
    product = msgspec.structs.replace(usual.products[0], block_rows=rows)
    changed = msgspec.structs.replace(usual, products=[product, usual.products[1]])
    with pytest.raises(EngineDamagedError, match="2 products in blocks of at most 6 rows"):
        read_tactics(msgspec.to_builtins(changed), len(PRODUCTS), 6)


def test_a_products_name_says_what_its_time_depends_on() -> None:
    names = {
        dataclasses.replace(PRODUCTS[0], **{f: v}).name
        for f, v in (("kernel", "f32"), ("kind", "swiglu"), ("rows", 65), ("columns", 257))
    }
    assert len(names) == 4
    assert isinstance(cost_model(PRODUCTS, LEVELS[0]), CpuTactics)
