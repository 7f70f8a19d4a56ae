"""How many KV blocks a budget buys, and the memory that holds them."""

from __future__ import annotations

import ctypes

import pytest

from enginewright.runtime import machine
from enginewright.runtime.errors import OutOfMemoryError
from enginewright.runtime.kv_pool import DEFAULT_SHARE, KvPool, count_blocks
from enginewright.runtime.manifest import KvFacts, Limits

BLOCK = 4096 * 3


def make_kv(block_bytes: int = BLOCK) -> KvFacts:
    return KvFacts(dtype="f32", block_tokens=32, block_bytes=block_bytes, num_layers=2)


def make_limits(sequences: int = 4, length: int = 100) -> Limits:
    return Limits(max_batch_size=sequences, max_num_tokens=64, max_seq_len=length)


def write(pool: KvPool, block: int, value: int) -> None:
    ctypes.memset(pool.address + block * pool.block_bytes, value, pool.block_bytes)


def read(pool: KvPool, block: int) -> bytes:
    return ctypes.string_at(pool.address + block * pool.block_bytes, pool.block_bytes)


@pytest.mark.parametrize(
    ("budget", "expected"), [(BLOCK, 1), (2 * BLOCK - 1, 1), (10 * BLOCK, 10), (10**9, 81380)]
)
def test_a_budget_buys_whole_blocks(budget: int, expected: int) -> None:
    assert count_blocks(make_kv(), make_limits(), budget) == expected


@pytest.mark.parametrize("budget", [0, 1, BLOCK - 1])
def test_a_budget_below_one_block_is_refused_with_the_numbers(budget: int) -> None:
    expected = rf"budget of {budget} bytes and a block of 32 tokens takes {BLOCK}; raise --kv"
    with pytest.raises(OutOfMemoryError, match=expected):
        count_blocks(make_kv(), make_limits(), budget)


def test_without_a_budget_every_sequence_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 10**9)
    assert count_blocks(make_kv(), make_limits(4, 96), None) == 4 * 3
    assert count_blocks(make_kv(), make_limits(4, 97), None) == 4 * 4


def test_without_a_budget_a_share_of_what_is_free_is_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = 100 * BLOCK
    monkeypatch.setattr(machine, "available_memory", lambda: free)
    blocks = count_blocks(make_kv(), make_limits(64, 8192), None)
    assert blocks == int(100 * DEFAULT_SHARE)
    monkeypatch.setattr(machine, "available_memory", lambda: BLOCK)
    with pytest.raises(OutOfMemoryError):
        count_blocks(make_kv(), make_limits(), None)


def test_blocks_are_copied_whole_and_alone() -> None:
    pool = KvPool(make_kv(), 5)
    for block in range(5):
        write(pool, block, block + 1)
    pool.copy(3, 1)
    assert [set(read(pool, block)) for block in range(5)] == [{1}, {4}, {3}, {4}, {5}]
    pool.copy(0, 0)
    assert set(read(pool, 0)) == {1}
    pool.close()


@pytest.mark.parametrize("pair", [(0, 5), (5, 0), (-1, 0), (0, -1)])
def test_a_block_that_does_not_exist_is_refused(pair: tuple[int, int]) -> None:
    pool = KvPool(make_kv(), 5)
    with pytest.raises(IndexError, match="of 5"):
        pool.copy(*pair)
    pool.close()


def test_the_pool_begins_with_zeros_on_a_huge_page() -> None:
    pool = KvPool(make_kv(), 3)
    assert pool.address % (2 << 20) == 0
    assert not any(read(pool, 2))
    write(pool, 2, 9)
    pool.close()


def test_a_pool_is_closed_twice_without_harm() -> None:
    pool = KvPool(make_kv(), 1)
    pool.close()
    pool.close()


@pytest.mark.parametrize("blocks", [1 << 45, 1 << 62])
def test_memory_that_the_system_does_not_have_is_refused(blocks: int) -> None:
    with pytest.raises(OutOfMemoryError, match=rf"refused {blocks * BLOCK} bytes for {blocks} KV"):
        KvPool(make_kv(), blocks)


def test_blocks_are_read_and_written_whole() -> None:
    pool = KvPool(make_kv(4096), 3)
    data = bytes(range(256)) * 16
    pool.write(1, data)
    assert [pool.read(block) for block in range(3)] == [bytes(4096), data, bytes(4096)]
    with pytest.raises(ValueError, match="4095 bytes for a block of 4096"):
        pool.write(0, bytes(4095))
    for block in (-1, 3):
        with pytest.raises(IndexError):
            pool.read(block)
    pool.close()
