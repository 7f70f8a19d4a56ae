"""The tree alone, against a model that is a list of what was published."""

from __future__ import annotations

import random

import pytest

from enginewright.executor.eviction import AdaptiveOrder
from enginewright.executor.kv_blocks import BooksError, KvBlocks
from enginewright.executor.kv_cache import KvCache
from enginewright.executor.prefix_tree import PrefixTree
from enginewright.executor.request import Request, RequestLimits
from enginewright.executor.sampling import TokenParams

LIMITS = RequestLimits(1 << 20, 1 << 20, 1 << 31)


class Tree:
    """A cache, and requests that fill it at once."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        blocks = KvBlocks(num_blocks, block_tokens)
        self.tree = PrefixTree(blocks, AdaptiveOrder(num_blocks))
        self.cache = KvCache(blocks, self.tree)
        self.count = 0

    def request(self, prompt: list[int], **params: object) -> Request:
        self.count += 1
        given = TokenParams(max_tokens=1, **params)  # type: ignore[arg-type]
        return Request(self.count, str(self.count), prompt, given, LIMITS, 0.0)

    def fill(self, prompt: list[int], **params: object) -> Request:
        """Start a request and compute its prompt; it still runs."""
        request = self.request(prompt, **params)
        self.cache.enqueue(request)
        self.cache.start(request)
        self.cache.grow(request, len(prompt))
        request.computed_tokens = len(prompt)
        self.cache.publish(request, len(prompt))
        return request

    def serve(self, prompt: list[int], **params: object) -> int:
        """Run a request to its end; returns its cached tokens."""
        request = self.fill(prompt, **params)
        self.cache.release(request)
        return request.cached_tokens


def common(a: list[int], b: list[int]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


@pytest.mark.parametrize("block_tokens", [1, 4, 32])
def test_finds_the_longest_prefix_that_was_ever_served(block_tokens: int) -> None:
    """With room for everything, the match is exact but for what is not worth a copy."""
    shuffle = random.Random(block_tokens)
    tree = Tree(100_000, block_tokens)
    served: list[list[int]] = []
    for _ in range(300):
        base = shuffle.choice(served)[: shuffle.randrange(80)] if served else []
        prompt = base + [shuffle.randrange(3) for _ in range(1 + shuffle.randrange(60))]
        full = [one[: len(one) // block_tokens * block_tokens] for one in served]
        longest = max((common(one, prompt) for one in full), default=0)
        expected = min(longest, len(prompt) - 1)
        if expected % block_tokens < max(1, block_tokens // 8):
            expected -= expected % block_tokens
        assert tree.serve(prompt) == expected
        served.append(prompt)
    tree.cache.check([], [])


def test_two_that_compute_the_same_keep_one_block_in_the_tree() -> None:
    tree = Tree(10, 4)
    first, second = tree.request([1] * 9), tree.request([1] * 9)
    for request in (first, second):
        tree.cache.enqueue(request)
        tree.cache.start(request)
        tree.cache.grow(request, 9)
        request.computed_tokens = 9
    tree.cache.publish(first, 9)
    tree.cache.publish(second, 9)
    assert tree.cache.num_cached == 2
    tree.cache.check([first, second], [])
    tree.cache.release(first)
    tree.cache.check([second], [])
    tree.cache.release(second)
    assert tree.cache.num_available == 10
    assert tree.serve([1] * 9) == 8


def test_an_unused_block_is_replaced_by_one_in_use_with_the_same_tokens() -> None:
    tree = Tree(10, 4)
    running = tree.request([1] * 9)
    tree.cache.enqueue(running)
    tree.cache.start(running)
    tree.cache.grow(running, 9)
    running.computed_tokens = 9
    assert tree.serve([1] * 9) == 0
    available = tree.cache.num_available
    tree.cache.publish(running, 9)
    assert tree.cache.num_available == available  # what is promised to others is not touched
    tree.cache.check([running], [])


def test_a_scan_does_not_push_out_what_is_used_again() -> None:
    tree = Tree(64, 4)
    hot = [7] * 80
    tree.serve(hot)
    tree.serve([*hot, 1])
    for number in range(100):
        tree.serve([100 + number] * 40)
    assert tree.serve([*hot, 2]) == 80


def test_what_comes_back_soon_after_it_was_evicted_is_kept_from_then_on() -> None:
    tree = Tree(64, 4)
    hot = [7] * 80

    def scan(start: int) -> None:
        for number in range(start, start + 8):
            tree.serve([number] * 40)

    tree.serve(hot)
    scan(100)
    assert tree.serve(hot) < 80
    scan(200)
    assert tree.serve([*hot, 1]) == 80
    tree.cache.check([], [])


def test_waiting_requests_are_moved_as_the_tree_changes() -> None:
    tree = Tree(12, 4)
    waiting = tree.request([1] * 17)
    tree.cache.enqueue(waiting)
    running = tree.fill([1] * 12)
    tree.cache.check([running], [waiting])
    assert waiting.node.depth == 3
    tree.cache.release(running)
    assert tree.cache.claim(waiting, 20) == 5
    large = tree.fill([2] * 48)  # everything that waits to be hit must go
    tree.cache.check([large], [waiting])
    assert waiting.node.depth == 0
    tree.cache.dequeue(waiting)
    tree.cache.release(large)
    tree.cache.check([], [])


def test_more_than_there_is_cannot_be_had() -> None:
    tree = Tree(2, 4)
    with pytest.raises(BooksError, match="3 blocks wanted"):
        tree.fill([1] * 12)


def test_salts_that_are_not_used_leave_nothing_behind() -> None:
    tree = Tree(4, 4)
    for number in range(50):
        tree.serve([1] * 16, cache_salt=f"tenant {number}")
    assert len(tree.tree._roots) == 1  # pyright: ignore[reportPrivateUsage]
