"""Copies of the weights: whole, where they shall be, and made by threads of the nodes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest

from enginewright.runtime import weights_map
from enginewright.runtime.numa import Node
from enginewright.runtime.weights_map import HUGE_PAGE, WeightsMap

SIZE = 3 * HUGE_PAGE + 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    (tmp_path / "weights").write_bytes(data.tobytes())
    return tmp_path / "weights"


def node(number: int) -> Node:
    """A node with the cores of this machine, whatever its number."""
    return Node(number, frozenset(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    "copies",
    [((),), ((node(0),),), ((node(0),), (node(1),)), ((node(0), node(1)),), ((node(0),) * 5,)],
    ids=["anywhere", "one node", "replicas", "in turn", "more nodes than pages"],
)
def test_every_copy_is_whole(path: Path, copies: tuple[tuple[Node, ...], ...]) -> None:
    weights = WeightsMap(path, SIZE, True, copies)
    before = os.sched_getaffinity(0)
    weights.settle()
    assert len(set(weights.addresses)) == len(copies)
    for address in weights.addresses:
        assert address % HUGE_PAGE == 0
        assert ctypes.string_at(address, SIZE) == path.read_bytes()
    assert weights.in_huge_pages
    assert os.sched_getaffinity(0) == before
    weights.close()


def test_each_share_is_written_by_a_thread_of_its_node(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    first, last = Node(0, frozenset({cores[0]})), Node(1, frozenset({cores[-1]}))
    written: list[tuple[int, set[int]]] = []
    move = ctypes.memmove

    def memmove(target: int, source: int, count: int) -> None:
        written.append(((source - base) // HUGE_PAGE, os.sched_getaffinity(0)))
        move(target, source, count)

    monkeypatch.setattr(weights_map.ctypes, "memmove", memmove)
    base = 0
    weights = WeightsMap(path, SIZE, False)
    base = weights.addresses[0]
    weights.close()
    weights = WeightsMap(path, SIZE, False, [(first, last)])
    base = weights._source  # pyright: ignore[reportPrivateUsage]
    weights.settle()
    pages = {page - min(p for p, _ in written): cpus for page, cpus in written}
    assert pages == {0: first.cpus, 1: last.cpus, 2: first.cpus, 3: last.cpus}
    weights.close()


def test_nothing_is_copied_unasked(path: Path) -> None:
    weights = WeightsMap(path, SIZE, False)
    weights.settle()
    assert not weights.in_huge_pages
    assert ctypes.string_at(weights.addresses[0], SIZE) == path.read_bytes()
    weights.close()
