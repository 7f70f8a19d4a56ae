"""Who leaves the prefix tree first: recency and frequency, with a memory of what has left."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Protocol


class Evictable(Protocol):
    """What the order knows of a node of the tree."""

    used: int  # when it was used last, on the tree's own clock
    frequent: bool  # in use again since it was inserted
    stamp: int  # which of its entries in the order is the valid one
    digest: int  # of the tokens from the root to its end
    wanted: int  # waiting requests that will use it
    pins: int

    @property
    def is_loose(self) -> bool:
        """Whether nobody holds it and nothing hangs below it."""
        ...


class EvictionOrder(Protocol):
    """Keeps the loose nodes in the order in which they leave."""

    def added(self, node: Evictable) -> None:
        """A node is new."""
        ...

    def hit(self, node: Evictable) -> None:
        """A request starts with this node's block instead of computing it."""
        ...

    def offer(self, node: Evictable) -> None:
        """A node has become loose, or its rank has changed while it is."""
        ...

    def pop(self) -> Evictable:
        """Return the node that leaves now, and remember it; there is one."""
        ...


# Of the pool, for nodes used once. By simulation (tests/benchmarks/cache_policy.py): without it the
# next turn of a conversation is found less often than by LRU; with more, scans pollute.
_LEAST_SHARE = 0.3

_Entry = tuple[int, int, Evictable, int]


class AdaptiveOrder:
    """Adaptive replacement (Megiddo and Modha, ARC, FAST 2003), over the leaves of a tree.

    Nodes that were used once and nodes that were used again stand in two lists by recency. A share
    of the pool, which adapts itself, is the size above which the first list pays: a one-time prompt
    can push out other one-time prompts alone. Two ghost lists remember what has left; a node that
    comes back soon is frequent from the start, and moves the share towards its list.

    Nodes that the waiting queue is about to use leave after all others, pinned nodes last of all.
    """

    def __init__(self, num_blocks: int) -> None:
        self._capacity = num_blocks
        self._heaps: tuple[list[_Entry], ...] = ([], [], [], [])  # once, frequent, wanted, pinned
        self._ghosts: tuple[OrderedDict[int, None], ...] = (OrderedDict(), OrderedDict())
        self._sizes = [0, 0]  # nodes in the tree: once, frequent
        self._least_share = _LEAST_SHARE * num_blocks
        self._share = (
            self._least_share
        )  # blocks that nodes of the first list may keep against the second
        self._entries = 0

    def added(self, node: Evictable) -> None:
        """Enter a new node, as frequent if it has left not long ago."""
        once, frequent = self._ghosts
        node.frequent = True
        if node.digest in once:
            step = max(1.0, len(frequent) / len(once))
            self._share = min(self._share + step, self._capacity)
            del once[node.digest]
        elif node.digest in frequent:
            step = max(1.0, len(once) / len(frequent))
            self._share = max(self._share - step, self._least_share)
            del frequent[node.digest]
        else:
            node.frequent = False
        self._sizes[node.frequent] += 1

    def hit(self, node: Evictable) -> None:
        """Move a node that is used again to the second list."""
        if not node.frequent:
            node.frequent = True
            self._sizes[0] -= 1
            self._sizes[1] += 1

    def offer(self, node: Evictable) -> None:
        """Put a loose node where it belongs now; its earlier entries become void."""
        node.stamp += 1
        self._entries += 1
        heap = self._heaps[3 if node.pins else 2 if node.wanted else int(node.frequent)]
        if len(heap) > 2 * self._capacity + 64:
            heap[:] = [entry for entry in heap if _is_valid(entry)]
            heapq.heapify(heap)
        heapq.heappush(heap, (node.used, self._entries, node, node.stamp))

    def pop(self) -> Evictable:
        """Return the node that leaves, by rank, then by recency."""
        once, frequent, wanted, pinned = (_skip_void(heap) for heap in self._heaps)
        # Blocks outside the tree count as used once: that is what they will be when they enter it.
        if once and (self._capacity - self._sizes[1] > self._share or not frequent):
            heap = once
        else:
            heap = frequent or wanted or pinned
        node = heapq.heappop(heap)[2]
        self._sizes[node.frequent] -= 1
        ghosts = self._ghosts[node.frequent]
        ghosts[node.digest] = None
        if len(ghosts) > self._capacity:
            ghosts.popitem(last=False)
        node.stamp += 1
        return node


def _skip_void(heap: list[_Entry]) -> list[_Entry]:
    """Drop entries at the front whose node has been used, changed or removed since."""
    while heap and not _is_valid(heap[0]):
        heapq.heappop(heap)
    return heap


def _is_valid(entry: _Entry) -> bool:
    return entry[3] == entry[2].stamp and entry[2].is_loose
