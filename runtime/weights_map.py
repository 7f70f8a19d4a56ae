"""An engine's weights in memory: mapped at once, moved into huge pages while steps run."""

from __future__ import annotations

import ctypes
import mmap
import threading
from pathlib import Path

from . import machine
from .errors import EngineDamagedError

HUGE_PAGE = 2 << 20
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_AUTO_SHARE = 4  # without being asked, copy only if this many copies would fit the free memory
_PIECE = 16 << 20  # bytes copied between two looks at whether to stop


class WeightsMap:
    """The weights file, mapped read-only; replicas on one machine share its pages.

    File pages are small ones, and reading weights through them costs a third of the memory
    bandwidth or more, so a thread copies them into anonymous huge pages: `address` changes once,
    when the copy is whole. `huge_pages` None decides by the memory that is free; True and False
    force it.
    """

    def __init__(self, path: Path, expected_bytes: int, huge_pages: bool | None = None) -> None:
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
        self.address = ctypes.addressof(self._anchors[0])
        self.in_huge_pages = False
        self._copy: mmap.mmap | None = None
        self._stop = threading.Event()
        self._copier: threading.Thread | None = None
        if huge_pages is None:
            huge_pages = machine.available_memory() > _AUTO_SHARE * expected_bytes
        if huge_pages and _system_gives_huge_pages():
            self._copier = threading.Thread(target=self._promote, name="huge-pages", daemon=True)
            self._copier.start()

    def _promote(self) -> None:
        size = len(self._file)
        try:
            copy = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
            copy.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return  # the file's own pages do
        anchor = ctypes.c_char.from_buffer(copy)
        target = -(-ctypes.addressof(anchor) // HUGE_PAGE) * HUGE_PAGE
        for start in range(0, size, _PIECE):
            if self._stop.is_set():
                return
            ctypes.memmove(target + start, self.address + start, min(_PIECE, size - start))
        self._anchors.append(anchor)
        self._copy = copy
        self.address = target
        self.in_huge_pages = True

    def settle(self) -> None:
        """Wait until the weights lie where they will stay."""
        if self._copier is not None:
            self._copier.join()

    def close(self) -> None:
        """Stop copying and give the memory back; nothing may read the weights any more."""
        self._stop.set()
        self.settle()
        self._anchors.clear()
        for memory in (self._file, self._copy):
            if memory is not None and not memory.closed:
                memory.close()


def _system_gives_huge_pages() -> bool:
    try:
        return "[never]" not in _THP.read_text()
    except OSError:
        return False
