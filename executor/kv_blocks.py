"""The books of the KV blocks: which are free, and how many hold each of the others."""

from __future__ import annotations

from collections.abc import Iterable


class BooksError(AssertionError):
    """The books do not balance: a bug of ours."""


class KvBlocks:
    """Ids of KV blocks with reference counts; the memory itself belongs to the session."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold that many tokens of one sequence."""
        return -(-tokens // self.block_tokens)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks; the caller has made sure that there are so many."""
        if not 0 <= count <= len(self._free):
            raise BooksError(f"{count} blocks wanted, {len(self._free)} free")
        if count == 0:
            return []
        taken = self._free[-count:][::-1]
        del self._free[-count:]
        for block in taken:
            self._holders[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that somebody holds already once more; shared blocks are read only."""
        for block in blocks:
            if self._holders[block] < 1:
                raise BooksError(f"block {block} is free and cannot be shared")
            self._holders[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Let go of blocks; one that nobody else holds becomes free."""
        for block in blocks:
            left = self._holders[block] - 1
            if left < 0:
                raise BooksError(f"block {block} is freed but nobody holds it")
            self._holders[block] = left
            if left == 0:
                self._free.append(block)

    def states(self) -> str:
        """Return a letter a block: `f` free, `h` held by one, `s` shared by several."""
        return "".join(["fhs"[min(holders, 2)] for holders in self._holders])

    def check(self, held: Iterable[list[int]]) -> None:
        """Recompute the books from every holder's list of blocks; raise BooksError on a gap."""
        counted = [0] * self.num_blocks
        for blocks in held:
            for block in blocks:
                counted[block] += 1
        if counted != self._holders:
            wrong = [b for b, n in enumerate(counted) if n != self._holders[b]]
            raise BooksError(f"blocks {wrong} are held by others than the books say")
        if sorted(self._free) != [b for b, n in enumerate(counted) if n == 0]:
            raise BooksError("the free list is not the list of blocks that nobody holds")
