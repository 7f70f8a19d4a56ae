"""Capacity policies: how many KV blocks a request must be sure of before it starts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

from .kv_cache import KvCache
from .request import Request

PolicyName = Literal["guaranteed_no_evict", "max_utilization", "static_batch"]


class CapacityPolicy(Protocol):
    """Decides from the books alone; keeps no state of its own."""

    pauses: bool  # whether a running request may lose its blocks to an older one

    def admits(self, running: Collection[Request]) -> bool:
        """Return whether requests may start at all."""
        ...

    def room(self, running: Collection[Request], cache: KvCache) -> int:
        """Return how many blocks new requests may claim in this step."""
        ...

    def claim(self, request: Request, cache: KvCache) -> int:
        """Return how many blocks a waiting request must claim to start."""
        ...


class GuaranteedNoEvict:
    """A request starts only when its prompt and longest answer fit beside all that run."""

    pauses = False

    def admits(self, running: Collection[Request]) -> bool:
        """Return that they may."""
        return True

    def room(self, running: Collection[Request], cache: KvCache) -> int:
        """Return the available blocks that no running request will need until it ends."""
        size = cache.block_tokens
        promised = 0
        for request in running:
            missing = -(-(request.prompt_tokens + request.max_new_tokens) // size)
            missing -= len(request.blocks)
            promised += missing
        return cache.num_available - promised

    def claim(self, request: Request, cache: KvCache) -> int:
        """Return the blocks of the prompt and the longest answer."""
        return cache.claim(request, request.max_total_tokens)


class StaticBatch(GuaranteedNoEvict):
    """As above, and requests start only when those of the batch before have all ended."""

    def admits(self, running: Collection[Request]) -> bool:
        """Return whether the batch has ended."""
        return not running


class MaxUtilization:
    """A request starts when its prompt fits; when blocks run out, the newest ones pause."""

    pauses = True

    def admits(self, running: Collection[Request]) -> bool:
        """Return that they may."""
        return True

    def room(self, running: Collection[Request], cache: KvCache) -> int:
        """Return what is left beside the prompts that are being read and a block for each answer.

        The block for each answer keeps a request from pausing soon after it has started.
        """
        room = cache.num_available
        for request in running:
            room -= cache.missing_blocks(request, len(request.tokens) + 1) + 1
        return room

    def claim(self, request: Request, cache: KvCache) -> int:
        """Return the blocks of the tokens so far and of the next one."""
        return cache.claim(request, len(request.tokens) + 1)


def make_policy(name: PolicyName) -> CapacityPolicy:
    """Return the policy of that name."""
    if name == "max_utilization":
        return MaxUtilization()
    return StaticBatch() if name == "static_batch" else GuaranteedNoEvict()
