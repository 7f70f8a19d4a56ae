"""Rotation by blocks is orthogonal, its own inverse, and leaves products as they are."""

import numpy as np
import pytest

from enginewright.builder.quantize.formats import FORMATS
from enginewright.builder.quantize.rotation import BLOCK, block_of, rotate


@pytest.mark.parametrize("block", [1, 2, 16, 64])
@pytest.mark.parametrize("columns", [1, 63, 64, 200])
def test_products_stay_as_they_are(block: int, columns: int) -> None:
    generator = np.random.default_rng(columns)
    a, b = (generator.standard_normal((n, columns)).astype(np.float32) for n in (5, 7))
    left, right = (rotate(x, block).astype(np.float64) for x in (a, b))
    np.testing.assert_allclose(left @ right.T, a.astype(np.float64) @ b.T, atol=2e-5)
    back = rotate(rotate(a, block), block)
    assert back.shape[1] == -(-columns // block) * block
    np.testing.assert_allclose(back[:, :columns], a, atol=1e-6)
    assert np.abs(back[:, columns:]).max(initial=0) < 1e-6


@pytest.mark.parametrize(("rows", "columns", "block"), [(3, 100, 64), (300, 512, 64), (7, 8, 4)])
def test_pairs_are_added_in_the_order_of_the_kernels(rows: int, columns: int, block: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    expected = np.pad(x, ((0, 0), (0, -columns % block)))
    for distance in 2 ** np.arange(np.log2(block)).astype(int):
        before = expected.copy()
        for i in range(expected.shape[1]):
            first, second = before[:, i & ~distance], before[:, i | distance]
            expected[:, i] = first - second if i & distance else first + second
    expected *= np.float32(1 / np.sqrt(block))
    assert (rotate(x, block).view(np.uint32) == expected.view(np.uint32)).all()


def test_a_single_element_is_shared_out_evenly() -> None:
    x = np.zeros(128, np.float32)
    x[70] = 8
    found = np.abs(rotate(x, 64))
    assert (found[:64] == 0).all()
    assert (found[64:] == 1).all()


def test_a_block_divides_what_it_turns() -> None:
    assert [block_of(n) for n in (22, 24, 64, 80, 96, 128, 192)] == [2, 8, 64, 16, 32, 64, 64]


@pytest.mark.parametrize(
    ("columns", "limit", "group"),
    [
        (576, 256, 192),
        (1536, 256, 256),
        (576, 64, 64),
        (70, 256, 128),
        (896, 192, 128),
        (1, 64, 64),
    ],
)
def test_groups_are_whole_blocks_that_divide_a_row(columns: int, limit: int, group: int) -> None:
    found = FORMATS["int8"].group(columns, limit)
    assert found == group
    assert -(-columns // BLOCK) * BLOCK % found == 0
    assert FORMATS["bf16"].group(columns, limit) == 0
