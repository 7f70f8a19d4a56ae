"""Memory nodes: their cores, which thread is kept on which, and where weights are."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import machine

NumaMode = Literal["none", "interleave", "replicate"]
NUMA_MODES: tuple[NumaMode, ...] = ("none", "interleave", "replicate")

_NODES = Path("/sys/devices/system/node")
_SPARE = 4  # by itself, replicate only if so many times the replicas would fit the free memory
_MBIND = {"x86_64": 237, "aarch64": 235}  # Linux, asm/unistd.h
_INTERLEAVE = 3  # Linux, MPOL_INTERLEAVE of numaif.h
_MASK_BITS = 1024


@dataclass(frozen=True, slots=True)
class Node:
    """A memory node, and the cores of it that this process may use."""

    number: int
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where weights are kept and threads run.

    `copies` has the nodes whose memory holds each copy of the weights: none of them for one copy
    wherever the system puts it. `threads` says of every thread which node it is kept on, and
    which copy it reads; it is empty where no thread is kept anywhere.
    """

    copies: tuple[tuple[Node, ...], ...]
    threads: tuple[tuple[Node, int], ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """The nodes that threads are kept on, each once."""
        return list(dict.fromkeys(node for node, _ in self.threads))


NOWHERE = Placement(copies=((),))


def place(
    mode: NumaMode | None, threads: int, weight_bytes: int, nodes: Sequence[Node] | None = None
) -> Placement:
    """Decide where `threads` threads and their weights are.

    None for `mode` is `none` on a machine of one node; on others `replicate` where memory is
    plenty, or else `interleave`.
    """
    nodes = find_nodes(_NODES, _allowed()) if nodes is None else nodes
    if mode is None:
        enough = machine.available_memory() > _SPARE * len(nodes) * weight_bytes
        mode = "none" if len(nodes) < 2 else "replicate" if enough else "interleave"
    if mode == "none" or not nodes:
        return NOWHERE
    kept = share(threads, nodes)
    used = list(dict.fromkeys(kept))
    if mode == "interleave":
        return Placement((tuple(used),), tuple((node, 0) for node in kept))
    return Placement(
        tuple((node,) for node in used), tuple((node, used.index(node)) for node in kept)
    )


def find_nodes(folder: Path, allowed: frozenset[int]) -> list[Node]:
    """Read the nodes from the system's folder; those without an allowed core are left out."""
    found: list[Node] = []
    for path in folder.glob("node[0-9]*"):
        try:
            cpus = parse_cpus((path / "cpulist").read_text()) & allowed
        except (OSError, ValueError):
            continue
        if cpus:
            found.append(Node(int(path.name.removeprefix("node")), cpus))
    return sorted(found, key=lambda node: node.number)


def parse_cpus(text: str) -> frozenset[int]:
    """Read a list of cores as Linux writes it: 0-3,8,10-11. Raises ValueError."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def share(threads: int, nodes: Sequence[Node]) -> list[Node]:
    """Return a node for every thread, neighbours together, in proportion to the nodes' cores."""
    owners = [node for node in nodes for _ in node.cpus]
    return [owners[(2 * i + 1) * len(owners) // (2 * threads)] for i in range(threads)]


def interleave(address: int, size: int, nodes: Sequence[Node]) -> bool:
    """Spread pages that nobody has touched yet over nodes; False where the system refuses."""
    number = _MBIND.get(machine.detect().arch)
    if number is None:
        return False
    mask = (ctypes.c_ulong * (_MASK_BITS // 64))()
    for node in nodes:
        mask[node.number // 64] |= 1 << node.number % 64
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    arguments = (address, size, _INTERLEAVE, ctypes.addressof(mask), _MASK_BITS, 0)
    return call(ctypes.c_long(number), *(ctypes.c_ulong(value) for value in arguments)) == 0


def _allowed() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
