"""Capacity policies: how many KV blocks a request must be sure of before it starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from .kv_blocks import KvBlocks
from .request import Request


class CapacityPolicy(Protocol):
    """Decides from the books alone; keeps no state of its own."""

    name: str

    def room(self, running: Iterable[Request], blocks: KvBlocks) -> int:
        """Return how many blocks new requests may claim in this step."""
        ...

    def claim(self, request: Request, blocks: KvBlocks) -> int:
        """Return how many blocks a waiting request must claim to start."""
        ...


class GuaranteedNoEvict:
    """A request starts only when its prompt and longest answer fit beside all that run."""

    name = "guaranteed_no_evict"

    def room(self, running: Iterable[Request], blocks: KvBlocks) -> int:
        """Return the free blocks that no running request will need until it ends."""
        size = blocks.block_tokens
        promised = 0
        for request in running:
            promised += -(-(request.prompt_tokens + request.max_new_tokens) // size)
            promised -= len(request.blocks)
        return blocks.num_free - promised

    def claim(self, request: Request, blocks: KvBlocks) -> int:
        """Return the blocks of the prompt and the longest answer."""
        return blocks.blocks_for(request.max_total_tokens)
