"""An engine's weights in memory: mapped at once, copied into huge pages while steps run."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from . import machine
from .errors import EngineDamagedError
from .numa import Node

HUGE_PAGE = 2 << 20
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_AUTO_SHARE = 4  # without being asked, copy only if this many copies would fit the free memory
_PIECE = 16 << 20  # bytes copied between two looks at whether to stop


class WeightsMap:
    """The weights file, mapped read-only; replicas on one machine share its pages.

    File pages are small ones, and reading weights through them costs a third of the memory
    bandwidth or more, so a thread copies them into anonymous huge pages: `addresses` changes once a
    copy, when it is whole. `huge_pages` None decides by the memory that is free; True and False
    force it.

    `copies` are those of a numa.Placement: a copy for which nodes are named is always made, and its
    pages lie in the memory of these nodes, since a thread on the cores of each is the first to
    write its share of them.
    """

    def __init__(
        self,
        path: Path,
        expected_bytes: int,
        huge_pages: bool | None = None,
        copies: Sequence[Sequence[Node]] = ((),),
    ) -> None:
        try:
            with path.open("rb") as file:
                self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise EngineDamagedError(
                f"{path} cannot be mapped ({error}); build the engine again"
            ) from error
        if len(self._file) != expected_bytes:
            raise EngineDamagedError(
                f"{path} has {len(self._file)} bytes and the manifest says {expected_bytes}; build "
                "the engine again"
            )
        if hasattr(mmap, "MADV_WILLNEED"):
            self._file.madvise(mmap.MADV_WILLNEED)
        self._anchors = [ctypes.c_char.from_buffer(self._file)]
        self._source = ctypes.addressof(self._anchors[0])
        self.addresses = [self._source] * len(copies)
        self._made: list[mmap.mmap] = []
        self._stop = threading.Event()
        self._copiers: list[threading.Thread] = []
        if huge_pages is None:
            huge_pages = machine.available_memory() > _AUTO_SHARE * expected_bytes
        for index, nodes in enumerate(copies):
            if nodes or (huge_pages and _system_gives_huge_pages()):
                copier = threading.Thread(
                    target=self._copy, args=(index, nodes), name="weights", daemon=True
                )
                self._copiers.append(copier)
                copier.start()

    @property
    def in_huge_pages(self) -> bool:
        """Whether every copy lies in memory of its own."""
        return len(self._made) == len(self.addresses)

    def _copy(self, index: int, nodes: Sequence[Node]) -> None:
        size = len(self._file)
        try:
            memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
            if _system_gives_huge_pages():
                memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return  # the file's own pages do
        anchor = ctypes.c_char.from_buffer(memory)
        target = -(-ctypes.addressof(anchor) // HUGE_PAGE) * HUGE_PAGE
        count = max(1, len(nodes))
        piece = _PIECE if count == 1 else HUGE_PAGE
        shares = [range(i * piece, size, count * piece) for i in range(count)]

        def fill(starts: range, node: Node | None) -> None:
            if node is not None:
                os.sched_setaffinity(0, node.cpus)  # of this thread
            for start in starts:
                if self._stop.is_set():
                    return
                ctypes.memmove(target + start, self._source + start, min(piece, size - start))

        fillers = [
            threading.Thread(target=fill, args=(starts, node), daemon=True)
            for starts, node in zip(shares, nodes or [None], strict=True)
        ]
        for filler in fillers:
            filler.start()
        for filler in fillers:
            filler.join()
        if self._stop.is_set():
            return
        self._anchors.append(anchor)
        self._made.append(memory)
        self.addresses[index] = target

    def settle(self) -> None:
        """Wait until the weights lie where they will stay."""
        for copier in self._copiers:
            copier.join()

    def close(self) -> None:
        """Stop copying and give the memory back; nothing may read the weights any more."""
        self._stop.set()
        self.settle()
        self._anchors.clear()
        for memory in (self._file, *self._made):
            if not memory.closed:
                memory.close()


def _system_gives_huge_pages() -> bool:
    try:
        return "[never]" not in _THP.read_text()
    except OSError:
        return False
