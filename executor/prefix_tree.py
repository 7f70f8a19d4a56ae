"""The prefix tree: which KV blocks hold which tokens, so that they need not be computed again."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import islice

from .eviction import EvictionOrder
from .kv_blocks import BooksError, KvBlocks
from .request import Request

_TOKEN_BYTES = 4
_LOOKED_AT = 8  # running requests at one node


class Node:
    """One full block below the blocks of all tokens before it; a root has no block.

    `locks` counts the running requests whose tokens lead through it; who locks a node locks all
    nodes above it. Waiters are waiting requests whose cached tokens end here, by the key of the
    block they lack; a producer is the running request that computes that block now. Runners are
    all running requests whose last full block this is.
    """

    __slots__ = (
        "block",
        "chain",
        "children",
        "depth",
        "digest",
        "frequent",
        "key",
        "locks",
        "ordered_keys",
        "parent",
        "pins",
        "producers",
        "runners",
        "salt",
        "stamp",
        "used",
        "waiters",
        "wanted",
    )

    def __init__(self, parent: Node | None, key: bytes, block: int, salt: str | None) -> None:
        self.parent = parent
        self.key = key  # the block's tokens, 4 bytes each
        self.block = block
        self.salt = salt
        self.depth = 0 if parent is None else parent.depth + 1  # full blocks from the root
        self.digest: int = hash(salt) if parent is None else hash((parent.digest, key))
        self.children: dict[bytes, Node] = {}
        self.ordered_keys: list[bytes] = []  # of the children
        self.waiters: dict[bytes, dict[int, Request]] = {}
        self.producers: dict[bytes, Request] = {}
        self.runners: dict[int, Request] = {}
        self.locks = self.wanted = self.pins = self.stamp = self.used = 0
        self.frequent = False
        self.chain = b""  # the block's name on the disk, where there is one

    @property
    def is_loose(self) -> bool:
        """Whether the node can leave the tree now."""
        return not self.locks and not self.children and self.parent is not None

    def path(self) -> Iterator[Node]:
        """Yield this node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixTree:
    """Holds one reference on the block of each node; requests of one salt share a root.

    A node that no running request leads through can be evicted, leaves first.
    """

    def __init__(self, blocks: KvBlocks, order: EvictionOrder) -> None:
        self._blocks = blocks
        self._order = order
        self._size = blocks.block_tokens
        self._roots: dict[str | None, Node] = {}
        self._clock = 0
        self.num_nodes = 0
        self.num_evictable = 0  # nodes without locks
        self.num_pinned = 0

    def key(self, request: Request, index: int) -> bytes:
        """Return the key of a request's full block `index`."""
        keys = request.block_keys
        while len(keys) <= index:
            start = len(keys) * self._size
            keys.append(array("I", request.tokens[start : start + self._size]).tobytes())
        return keys[index]

    def find(self, request: Request) -> Node:
        """Return the deepest node whose blocks the request may use for its first tokens."""
        node = self.root(request.params.cache_salt)
        for index in range(request.reusable_tokens // self._size):
            child = node.children.get(self.key(request, index))
            if child is None:
                break
            node = child
        return node

    def root(self, salt: str | None) -> Node:
        """Return the root of a salt."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, b"", -1, salt)
        return root

    def nearest(self, node: Node, tokens: Sequence[int]) -> tuple[Node, int] | None:
        """Return the child that begins with most of `tokens`, and with how many; None for none."""
        keys = node.ordered_keys
        if not keys or not tokens:
            return None
        wanted = array("I", tokens).tobytes()
        at = bisect_left(keys, wanted)
        best, most = b"", 0
        for key in keys[max(at - 1, 0) : at + 1]:  # the longest common prefix is a neighbour's
            count = _common_tokens(key, wanted)
            if count > most:
                best, most = key, count
        return (node.children[best], most) if most else None

    def nearest_runner(self, node: Node, tokens: Sequence[int]) -> tuple[Request, int] | None:
        """Return who of the first that go on below a node has most of `tokens`, and how many."""
        best, most = None, 0
        start = node.depth * self._size
        for runner in islice(node.runners.values(), _LOOKED_AT):
            known = runner.tokens[start : min(runner.landed_tokens, start + len(tokens))]
            count = next((i for i, one in enumerate(known) if one != tokens[i]), len(known))
            if count > most:
                best, most = runner, count
        return None if best is None else (best, most)

    def insert(self, node: Node, key: bytes, block: int) -> Node:
        """Return the child of a locked node for a block that holds `key`, locked once more.

        If there is one already that nobody uses, it takes over the block and gives its own back.
        """
        child = node.children.get(key)
        if child is not None:
            if not child.locks:
                self._blocks.share([block])
                self._blocks.free([child.block])
                child.block = block
            self._lock(child)
            return child
        child = Node(node, key, block, node.salt)
        self._blocks.share([block])
        node.children[key] = child
        insort(node.ordered_keys, key)
        child.locks = 1
        self.num_nodes += 1
        self._touch(child)
        self._order.added(child)
        for waiter in node.waiters.pop(key, {}).values():
            child.wanted += 1
            self._await(child, waiter)
        return child

    def lock_path(self, node: Node, is_new_use: bool) -> list[int]:
        """Lock a node and all above it for a request that starts; return their blocks from the top.

        `is_new_use` says whether the use counts for the order of eviction.
        """
        self.root(node.salt).locks += 1
        path = list(node.path())
        for step in path:
            self._lock(step)
            if is_new_use:
                self._order.hit(step)
        return [step.block for step in reversed(path)]

    def unlock_path(self, node: Node, is_use: bool = True) -> None:
        """Undo `lock_path`, and the locks of `insert` below it; a use counts as recent now."""
        self._clock += is_use
        for step in node.path():
            if is_use:
                step.used = self._clock
            step.locks -= 1
            if not step.locks:
                self.num_evictable += 1
                if not step.children:
                    self._order.offer(step)
        self.root(node.salt).locks -= 1
        self._drop_root(node.salt)

    def num_loose_on_path(self, node: Node) -> int:
        """Return how many nodes from the root to this one nobody has locked."""
        count = 0
        for step in node.path():
            if step.locks:
                break
            count += 1
        return count

    def add_waiter(self, request: Request) -> None:
        """Remember a waiting request at the last node that it can use."""
        node = self.find(request)
        for step in node.path():
            self._want(step, 1)
        self._await(node, request)

    def remove_waiter(self, request: Request) -> None:
        """Forget a waiting request."""
        node: Node = request.node
        key = self._missing_key(node, request)
        waiters = node.waiters[key]
        del waiters[request.number]
        if not waiters:
            del node.waiters[key]
        for step in node.path():
            self._want(step, -1)
        request.node = None
        self._drop_root(node.salt)

    def producer(self, request: Request) -> Request | None:
        """Return the running request that computes the block which a waiting request lacks."""
        node: Node = request.node
        key = self._missing_key(node, request)
        return node.producers.get(key) if key else None

    def produce(self, request: Request) -> None:
        """Announce that a running request goes on below its node."""
        node: Node = request.node
        node.runners[request.number] = request
        if (node.depth + 1) * self._size <= request.prompt_tokens:
            node.producers.setdefault(self.key(request, node.depth), request)

    def stop_producing(self, request: Request) -> None:
        """Take the announcement back."""
        node: Node = request.node
        del node.runners[request.number]
        if (node.depth + 1) * self._size <= request.prompt_tokens:
            key = self.key(request, node.depth)
            if node.producers.get(key) is request:
                del node.producers[key]

    def pin(self, node: Node, change: int) -> None:
        """Pin a node and all above it (1), or take one pin back (-1)."""
        for step in node.path():
            before = step.pins
            step.pins += change
            self.num_pinned += bool(step.pins) - bool(before)
            if step.is_loose:
                self._order.offer(step)

    def evict(self) -> Node:
        """Remove the node that is needed least and give its block back; there must be one."""
        node = self._order.pop()
        assert isinstance(node, Node)
        parent = node.parent
        if parent is None or not node.is_loose:
            raise BooksError("a node was to be evicted that is in use")
        for waiters in node.waiters.values():
            for waiter in waiters.values():
                self._await(parent, waiter)
        del parent.children[node.key]
        del parent.ordered_keys[bisect_left(parent.ordered_keys, node.key)]
        node.parent = None
        self.num_nodes -= 1
        self.num_evictable -= 1
        self.num_pinned -= bool(node.pins)
        self._blocks.free([node.block])
        if parent.is_loose:
            self._order.offer(parent)
        self._drop_root(node.salt)
        return node

    def nodes(self) -> Iterator[Node]:
        """Yield every node, parents first."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def check(self, leads: Sequence[Node], waiting: Sequence[Request]) -> None:
        """Recompute locks from the running requests' last nodes; raise BooksError on a gap."""
        locks: dict[Node, int] = {}
        wanted: dict[Node, int] = {}
        for counts, ends in ((locks, leads), (wanted, [request.node for request in waiting])):
            for end in ends:
                for step in end.path():
                    counts[step] = counts.get(step, 0) + 1
        nodes = list(self.nodes())
        for node in nodes:
            if node.locks != locks.get(node, 0) or node.wanted != wanted.get(node, 0):
                raise BooksError("a node of the prefix tree is locked or wanted by nobody known")
            if sorted(node.children) != node.ordered_keys:
                raise BooksError("a node's children are not its ordered keys")
        for request in waiting:
            if request.node is not self.find(request):
                raise BooksError(f"request {request.request_id} waits at the wrong node")
        loose = sum(not node.locks for node in nodes)
        pinned = sum(bool(node.pins) for node in nodes)
        if (len(nodes), loose, pinned) != (self.num_nodes, self.num_evictable, self.num_pinned):
            raise BooksError("the prefix tree counts its nodes wrongly")
        if len({node.block for node in nodes}) != len(nodes):
            raise BooksError("a block stands in the prefix tree twice")

    def _lock(self, node: Node) -> None:
        if not node.locks:
            self.num_evictable -= 1
        node.locks += 1

    def _touch(self, node: Node) -> None:
        self._clock += 1
        node.used = self._clock

    def _want(self, node: Node, change: int) -> None:
        node.wanted += change
        if node.is_loose and node.wanted <= 1:
            self._order.offer(node)

    def _await(self, node: Node, request: Request) -> None:
        request.node = node
        key = self._missing_key(node, request)
        node.waiters.setdefault(key, {})[request.number] = request

    def _missing_key(self, node: Node, request: Request) -> bytes:
        """Return the key of the first block that a request lacks; empty if it needs no more."""
        if (node.depth + 1) * self._size <= request.reusable_tokens:
            return self.key(request, node.depth)
        return b""

    def _drop_root(self, salt: str | None) -> None:
        root = self._roots.get(salt)
        if root and not (root.children or root.waiters or root.producers or root.locks):
            del self._roots[salt]


def _common_tokens(a: bytes, b: bytes) -> int:
    """Return how many leading tokens two keys share."""
    shorter = min(len(a), len(b))
    low = int.from_bytes(a[:shorter], "little") ^ int.from_bytes(b[:shorter], "little")
    bits = (low & -low).bit_length() - 1 if low else 8 * shorter
    return bits // (8 * _TOKEN_BYTES)
