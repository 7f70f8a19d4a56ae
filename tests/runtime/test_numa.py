"""Memory nodes from fake trees, threads shared out over them, and pages spread by the system."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from enginewright.runtime import machine, numa
from enginewright.runtime.numa import (
    NOWHERE,
    Node,
    find_nodes,
    interleave,
    parse_cpus,
    place,
    share,
)


def nodes_of(*sizes: int) -> list[Node]:
    """Nodes with so many cores each."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        Node(number, frozenset(range(start, start + size)))
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def write_nodes(folder: Path, **lists: str) -> Path:
    for name, text in lists.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "cpulist").write_text(text + "\n")
    return folder


def test_lists_of_cores() -> None:
    assert parse_cpus("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpus("\n") == frozenset()
    with pytest.raises(ValueError, match="x"):
        parse_cpus("0-x")


def test_nodes_are_those_with_a_core_that_may_be_used(tmp_path: Path) -> None:
    write_nodes(tmp_path, node10="16-23", node0="0-3,8-11", node1="4-7", node2="", node3="rubbish")
    (tmp_path / "node4").mkdir()
    (tmp_path / "power").mkdir()
    allowed = frozenset({1, 2, 9, 16})
    assert find_nodes(tmp_path, allowed) == [
        Node(0, frozenset({1, 2, 9})),
        Node(10, frozenset({16})),
    ]
    assert find_nodes(tmp_path / "nothing", allowed) == []


@pytest.mark.parametrize(
    ("threads", "sizes", "numbers"),
    [
        (4, (2, 2), [0, 0, 1, 1]),
        (2, (8, 8), [0, 1]),
        (3, (4, 2), [0, 0, 1]),
        (4, (6, 2), [0, 0, 0, 1]),
        (6, (1, 1), [0, 0, 0, 1, 1, 1]),
        (2, (2,), [0, 0]),
    ],
)
def test_threads_are_shared_out_by_cores(
    threads: int, sizes: tuple[int, ...], numbers: list[int]
) -> None:
    assert [node.number for node in share(threads, nodes_of(*sizes))] == numbers


def test_by_itself_one_node_is_left_alone_and_memory_decides_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = nodes_of(4), nodes_of(2, 2)
    monkeypatch.setattr(machine, "available_memory", lambda: 801)
    assert place(None, 4, 100, one) == place("none", 4, 100, two) == NOWHERE
    assert place(None, 4, 100, []) == place("replicate", 4, 100, []) == NOWHERE
    assert place(None, 4, 100, two) == place("replicate", 4, 100, two)
    monkeypatch.setattr(machine, "available_memory", lambda: 799)
    assert place(None, 4, 100, two) == place("interleave", 4, 100, two)


def test_replicas_and_turns() -> None:
    first, second = nodes = nodes_of(2, 2)
    found = place("replicate", 4, 1, nodes)
    assert found.copies == ((first,), (second,))
    assert found.threads == ((first, 0), (first, 0), (second, 1), (second, 1))
    found = place("interleave", 4, 1, nodes)
    assert found.copies == ((first, second),)
    assert [copy for _, copy in found.threads] == [0, 0, 0, 0]
    assert place("replicate", 1, 1, nodes).copies == ((second,),)  # no copy that nobody reads
    assert found.nodes == nodes


def test_the_nodes_of_this_machine_are_found() -> None:
    for node in find_nodes(numa._NODES, numa._allowed()):  # pyright: ignore[reportPrivateUsage]
        assert node.cpus <= os.sched_getaffinity(0)


def test_the_system_is_told_to_spread_pages() -> None:
    with mmap.mmap(-1, 4 * mmap.PAGESIZE) as memory:
        anchor = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(anchor)
        done = interleave(address, 2 * mmap.PAGESIZE, [Node(0, frozenset({0}))])
        maps = Path("/proc/self/numa_maps")
        if done and maps.exists():
            line = next(x for x in maps.read_text().splitlines() if x.startswith(f"{address:x} "))
            assert line.split()[1].startswith("interleave"), line
        assert not interleave(address, mmap.PAGESIZE, [Node(1000, frozenset({0}))])
        del anchor
