"""The KV cache of the sequences: what each request holds, and what is kept for later requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .disk_tier import DiskTier
from .kv_blocks import BooksError, KvBlocks
from .plan import Move
from .prefix_tree import Node, PrefixTree
from .request import Request


class KvCache:
    """Gives blocks to requests, from the free ones or by eviction, and finds prefixes again.

    A block that is full enters the prefix tree once the step that filled it is done, be it of
    prompt or answer. A block that is shared is full and is never written again. With a disk tier
    the blocks of the tree are kept there too, and a request that starts gets back what is missing.
    """

    def __init__(self, blocks: KvBlocks, tree: PrefixTree, disk: DiskTier | None = None) -> None:
        self.block_tokens = blocks.block_tokens
        self.num_blocks = blocks.num_blocks
        self._blocks = blocks
        self._tree = tree
        self._disk = disk
        self._least_copy = max(1, blocks.block_tokens // 8)  # tokens that are worth a copy
        self.evicted_blocks = 0
        self.allocated_blocks = 0
        self.reused_blocks = 0
        self.missed_blocks = 0
        self.disk_tokens = 0  # of prompts, found on the disk

    @property
    def num_available(self) -> int:
        """Blocks that a request can have: free ones, and cached ones that nobody uses."""
        return self._blocks.num_free + self._tree.num_evictable

    @property
    def num_cached(self) -> int:
        """Blocks in the prefix tree."""
        return self._tree.num_nodes

    @property
    def num_pinned(self) -> int:
        """Cached blocks that leave last."""
        return self._tree.num_pinned

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold that many tokens of one sequence."""
        return self._blocks.blocks_for(tokens)

    def missing_blocks(self, request: Request, tokens: int) -> int:
        """Return how many blocks a running request lacks to have `tokens` computed."""
        return max(self._blocks.blocks_for(tokens) - len(request.blocks), 0)

    def enqueue(self, request: Request) -> None:
        """Find what a request that begins to wait can use, and keep that up to date."""
        self._tree.add_waiter(request)
        if self._disk is not None:
            self._read_ahead(self._disk, request)

    def dequeue(self, request: Request) -> None:
        """Forget a request that waits no longer and does not start."""
        self._tree.remove_waiter(request)

    def claim(self, request: Request, tokens: int) -> int:
        """Return how many available blocks a waiting request takes to have `tokens` computed.

        Cached blocks that running requests use already cost nothing.
        """
        node: Node = request.node
        shared = node.depth - self._tree.num_loose_on_path(node)
        return self._blocks.blocks_for(tokens) - shared

    def producer(self, request: Request) -> Request | None:
        """Return the running request that computes what this waiting one would compute next."""
        return self._tree.producer(request)

    def start(self, request: Request) -> list[Move]:
        """Give a waiting request the cached blocks it can use; it waits no longer.

        Returns what must be put into its blocks before the next step. The moves of several requests
        keep their order: the source of one may be the target of a later one.
        """
        node: Node = request.node
        is_new_use = request.pauses == 0
        blocks = self._tree.lock_path(node, is_new_use)
        self._tree.remove_waiter(request)
        request.node = node
        self._blocks.share(blocks)
        request.blocks = blocks
        moves: list[Move] = []
        if self._disk is not None:
            node = self._load(self._disk, request, moves)
        request.computed_tokens = request.landed_tokens = len(request.blocks) * self.block_tokens
        self._start_partly(request, node, moves)
        if is_new_use:
            request.cached_tokens = request.computed_tokens
            self.reused_blocks += node.depth
            self.missed_blocks += self._blocks.blocks_for(len(request.tokens)) - node.depth
        self._tree.produce(request)
        return moves

    def grow(self, request: Request, tokens: int) -> list[int]:
        """Give a running request the blocks it lacks to have `tokens` computed; return those."""
        count = self.missing_blocks(request, tokens)
        new = self._allocate(count) if count else []
        request.blocks += new
        return new

    def shrink(self, request: Request, tokens: int) -> None:
        """Take back a running request's blocks beyond its first `tokens`; none is shared."""
        count = self._blocks.blocks_for(tokens)
        if count < len(request.blocks):
            self._blocks.free(request.blocks[count:])
            del request.blocks[count:]

    def publish(self, request: Request, tokens: int) -> None:
        """Enter the full blocks among a running request's first `tokens`, whose KV is written."""
        tree = self._tree
        full = tokens // self.block_tokens
        node: Node = request.node
        tree.stop_producing(request)
        while node.depth < full:
            node = tree.insert(node, tree.key(request, node.depth), request.blocks[node.depth])
            request.node = node
            if self._disk is not None:
                self._disk.save(self._name(self._disk, node), node.block)
        tree.produce(request)

    def release(self, request: Request) -> None:
        """Take back all that a running request holds; what is in the tree stays findable."""
        self._tree.stop_producing(request)
        if self._disk is not None:
            self._disk.use([step.chain for step in request.node.path()])
        self._tree.unlock_path(request.node)
        self._blocks.free(request.blocks)
        request.node = None
        request.blocks = []

    def pin(self, request: Request) -> None:
        """Pin what the tree holds of a running request's prompt."""
        node: Node = request.node
        while node.depth * self.block_tokens > request.prompt_tokens and node.parent is not None:
            node = node.parent
        self._tree.pin(node, 1)

    def disk_gauges(self) -> dict[str, Any]:
        """Return what the disk tier holds and has done; empty without one."""
        if self._disk is None:
            return {}
        return {**self._disk.gauges(), "disk_cached_tokens": self.disk_tokens}

    def states(self) -> str:
        """Return a letter a block: `f` free, `c` cached, `h` held by one, `s` shared by several."""
        letters = list(self._blocks.states())
        for node in self._tree.nodes():
            holders = node.locks
            letters[node.block] = "chs"[min(holders, 2)]
        return "".join(letters)

    def check(self, holders: Iterable[Request], waiting: Iterable[Request]) -> None:
        """Recompute the books from everybody's blocks; raise BooksError if they do not balance."""
        holders, waiting = list(holders), list(waiting)
        cached = {node.block for node in self._tree.nodes()}
        self._blocks.check([*(request.blocks for request in holders), list(cached)])
        self._tree.check([request.node for request in holders], waiting)
        owners: dict[int, str] = {}
        for request in holders:
            node: Node = request.node
            for block in request.blocks[node.depth :]:
                if block in owners or block in cached:
                    raise BooksError(f"block {block} is written by two")
                owners[block] = request.request_id

    def _name(self, disk: DiskTier, node: Node) -> bytes:
        """Return the name of a node's block on the disk."""
        if not node.chain:
            if node.parent is None:
                node.chain = disk.root(node.salt)
            else:
                node.chain = disk.child(self._name(disk, node.parent), node.key)
        return node.chain

    def _names(self, disk: DiskTier, request: Request) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and name of the blocks that follow a request's node and are on the disk."""
        node: Node = request.node
        name = self._name(disk, node)
        for index in range(node.depth, request.reusable_tokens // self.block_tokens):
            key = self._tree.key(request, index)
            name = disk.child(name, key)
            if not disk.has(name):
                return
            yield key, name

    def _read_ahead(self, disk: DiskTier, request: Request) -> None:
        names = [name for _, name in self._names(disk, request)]
        if names:
            disk.read_ahead(names)

    def _load(self, disk: DiskTier, request: Request, moves: list[Move]) -> Node:
        """Give a request that starts what the disk has after its node; return its last node."""
        node: Node = request.node
        for key, name in list(self._names(disk, request)):
            data = disk.load(name)
            if data is None:
                break
            (block,) = self._allocate(1)
            moves.append((data, block))
            request.blocks.append(block)
            request.node = node = self._tree.insert(node, key, block)
            node.chain = name
            self.disk_tokens += self.block_tokens
        return node

    def _start_partly(self, request: Request, node: Node, moves: list[Move]) -> None:
        """Take over a part of a block by copy, if one begins as the request goes on.

        The block is a cached one, or the last one of a running request: answers of one prompt have
        its last tokens from the first of them.
        """
        start = request.computed_tokens
        rest = request.tokens[start : min(start + self.block_tokens, request.reusable_tokens)]
        cached = self._tree.nearest(node, rest)
        running = self._tree.nearest_runner(node, rest)
        count = max(cached[1] if cached else 0, running[1] if running else 0)
        if count < self._least_copy:
            return
        if running is not None and running[1] == count:
            if self.num_available < 1:
                return
            source = running[0].blocks[node.depth]
            (target,) = self._allocate(1)
        else:
            assert cached is not None
            loose = cached[0]
            if self.num_available - (not loose.locks) < 1:
                return
            source = loose.block
            self._tree.lock_path(loose, False)  # so that it is not the one that is evicted
            (target,) = self._allocate(1)
            self._tree.unlock_path(loose, is_use=False)
        request.blocks.append(target)
        request.computed_tokens += count
        moves.append((source, target))

    def _allocate(self, count: int) -> list[int]:
        while self._blocks.num_free < count:
            if not self._tree.num_evictable:
                raise BooksError(f"{count} blocks wanted, {self._blocks.num_free} free")
            node = self._tree.evict()
            if self._disk is not None:  # its first writing may have been dropped
                self._disk.save(node.chain, node.block)
            self.evicted_blocks += 1
        self.allocated_blocks += count
        return self._blocks.allocate(count)
