"""One file of a checkpoint, mapped read-only; pages are given back after use."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

import numpy as np

from ..runtime.errors import CheckpointError

HASH_CHUNK = 1 << 20


class MappedFile:
    """A read-only mapping of `path`.

    Raises CheckpointError when the file is missing, unreadable or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:  # mmap refuses an empty file
            raise CheckpointError(f"{path} is empty; expected a checkpoint file.") from error
        self.size = len(self._map)

    def read(self, offset: int, count: int) -> bytes:
        """Copy `count` bytes at `offset`; the caller has checked the bounds."""
        return self._map[offset : offset + count]

    def copy(self, offset: int, count: int) -> np.ndarray:
        """Copy `count` bytes at `offset` as uint8 and release their mapped pages at once."""
        data = np.frombuffer(self._map, np.uint8, count, offset).copy()
        self._release(offset, count)
        return data

    def _release(self, offset: int, count: int) -> None:
        """Let the kernel drop the pages of a range: reading on does not grow the process."""
        if count == 0 or not hasattr(self._map, "madvise"):
            return
        start = offset - offset % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, offset + count - start)

    def close(self) -> None:
        """Unmap the file; closing twice is fine."""
        self._map.close()


def sha256(path: Path) -> str:
    """Hex digest of a file, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
