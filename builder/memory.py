"""Peak memory of a build, as the operating system saw it."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): resets the peak resident set size to the current one


def release_free_memory() -> None:
    """Give memory that was freed back to the system, where the C library can (glibc)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class PeakMemory:
    """Growth of this process's peak resident memory since the object was made.

    On Linux the kernel's high-water mark is reset first, so that earlier peaks do not hide this
    one; elsewhere only growth beyond an earlier peak is seen. Pages of mapped files count. A
    child process (the compiler) that grew larger than this process ever was counts in its place.
    """

    def __init__(self) -> None:
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK)
        except OSError:
            pass  # not Linux, or not allowed: the lifetime peak is the base
        self._base = _peak_bytes()
        self._children_base = _children_peak_bytes()

    def growth(self) -> int:
        """Bytes of the peak beyond the base; the larger of this process's and a child's."""
        own = _peak_bytes()
        children = _children_peak_bytes()
        # Until its exec a child shares our pages, so up to `own` its figure says nothing of it.
        child = children if children > max(own, self._children_base) else 0
        return max(own - self._base, child, 0)


def _peak_bytes() -> int:
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _maxrss_bytes(resource.RUSAGE_SELF)


def _children_peak_bytes() -> int:
    return _maxrss_bytes(resource.RUSAGE_CHILDREN)


def _maxrss_bytes(who: int) -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit
