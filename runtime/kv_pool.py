"""The memory of the KV blocks: how many fit a budget, and the pages that hold them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

from . import machine
from .errors import OutOfMemoryError
from .manifest import KvFacts, Limits
from .numa import Node, interleave

DEFAULT_SHARE = 0.3  # of the memory that is free when the pool is made
_HUGE_PAGE = 2 << 20


def count_blocks(kv: KvFacts, limits: Limits, budget: int | None) -> int:
    """Return how many KV blocks a pool of `budget` bytes has.

    None takes what `max_batch_size` sequences of full length need, but at most 30 % of the memory
    that is free now. Raises OutOfMemoryError when the budget cannot hold one block.
    """
    per_sequence = -(-limits.max_seq_len // kv.block_tokens)
    wanted = limits.max_batch_size * per_sequence
    if budget is None:
        budget = int(machine.available_memory() * DEFAULT_SHARE)
        wanted = min(wanted, budget // kv.block_bytes)
    else:
        wanted = budget // kv.block_bytes
    if wanted < 1:
        raise OutOfMemoryError(
            f"the KV cache has a budget of {budget} bytes and a block of {kv.block_tokens} tokens "
            f"takes {kv.block_bytes}; raise --kv-cache-memory or free memory"
        )
    return wanted


class KvPool:
    """Anonymous memory for `num_blocks` blocks, in huge pages where the system gives them.

    Pages are taken when they are first written, so an unused pool costs address space only. They
    are spread over `nodes` if there are several, since any thread may read any block.
    """

    def __init__(self, kv: KvFacts, num_blocks: int, nodes: Sequence[Node] = ()) -> None:
        self.block_bytes = kv.block_bytes
        self.num_blocks = num_blocks
        size = kv.block_bytes * num_blocks
        try:
            self._memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        except (OSError, OverflowError) as error:
            raise OutOfMemoryError(
                f"the system refused {size} bytes for {num_blocks} KV blocks ({error}); lower "
                "--kv-cache-memory"
            ) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self._memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without huge pages; small ones do
        self._anchor = ctypes.c_char.from_buffer(self._memory)
        start = ctypes.addressof(self._anchor)
        self.address = -(-start // _HUGE_PAGE) * _HUGE_PAGE
        if len(nodes) > 1:  # refused, they lie where they are first written
            interleave(self.address, size, nodes)

    def copy(self, source: int, target: int) -> None:
        """Copy one block, all layers of it, onto another."""
        ctypes.memmove(self._address_of(target), self._address_of(source), self.block_bytes)

    def read(self, block: int) -> bytes:
        """Return a copy of one block, all layers of it."""
        return ctypes.string_at(self._address_of(block), self.block_bytes)

    def write(self, block: int, data: bytes) -> None:
        """Put what `read` returned into a block."""
        if len(data) != self.block_bytes:
            raise ValueError(f"{len(data)} bytes for a block of {self.block_bytes}")
        ctypes.memmove(self._address_of(block), data, self.block_bytes)

    def _address_of(self, block: int) -> int:
        if not 0 <= block < self.num_blocks:
            raise IndexError(f"block {block} of {self.num_blocks}")
        return self.address + block * self.block_bytes

    def close(self) -> None:
        """Give the memory back."""
        if not self._memory.closed:
            del self._anchor
            self._memory.close()
