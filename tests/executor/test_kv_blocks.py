import pytest

from enginewright.executor.kv_blocks import BooksError, KvBlocks


def test_blocks_for_rounds_up() -> None:
    blocks = KvBlocks(4, 32)
    assert [blocks.blocks_for(n) for n in (0, 1, 32, 33)] == [0, 1, 1, 2]


def test_a_shared_block_is_free_when_the_last_holder_lets_go() -> None:
    blocks = KvBlocks(3, 4)
    mine = blocks.allocate(2)
    blocks.share(mine[:1])
    blocks.check([mine, mine[:1]])
    blocks.free(mine)
    assert blocks.num_free == 2
    blocks.check([mine[:1]])
    blocks.free(mine[:1])
    assert blocks.num_free == 3
    blocks.check([])


def test_misuse_raises() -> None:
    blocks = KvBlocks(2, 4)
    with pytest.raises(BooksError, match="3 blocks wanted, 2 free"):
        blocks.allocate(3)
    with pytest.raises(BooksError, match="nobody holds it"):
        blocks.free([0])
    with pytest.raises(BooksError, match="cannot be shared"):
        blocks.share([0])


def test_check_finds_a_leak() -> None:
    blocks = KvBlocks(2, 4)
    blocks.allocate(1)
    with pytest.raises(BooksError, match="held by others"):
        blocks.check([])
