"""Memory of the host and of a device that grows with its use, and how arrays are packed in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .device import Bytes, Device

_ALIGNMENT = 256  # bytes; TensorRT wants it of every address


def aligned(nbytes: int) -> int:
    """Return the bytes that an array takes among others."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class HostArena:
    """Host memory that grows, taken in order; one step uses it at a time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory: Bytes = np.empty(0, np.uint8)
        self._used = 0
        self._read = 0

    def reset(self, nbytes: int) -> None:
        """Forget what was taken, and make room for `nbytes`."""
        if nbytes > len(self._memory):
            self._memory = self._device.allocate_host(2 * nbytes)
        self._used = self._read = 0

    def take(self, nbytes: int) -> Bytes:
        """Return the next `nbytes`."""
        self._used += nbytes
        return self._memory[self._used - nbytes : self._used]

    def read(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Return a copy of what was taken next in order."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._read += nbytes
        part = self._memory[self._read - nbytes : self._read]
        return part.view(dtype).reshape(shape).copy()


class DeviceArena:
    """Device memory that grows; the stream keeps its users in order."""

    def __init__(self, device: Device, what: str) -> None:
        self._device = device
        self._what = what
        self._size = 0
        self.address = 0

    def reset(self, nbytes: int) -> None:
        """Make room for `nbytes`."""
        if nbytes > self._size:
            self._size = 2 * nbytes
            self.address = self._device.allocate(self._size, self._what)
