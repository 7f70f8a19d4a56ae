"""A CUDA driver and runtime whose device is the host, called as cuda-bindings are.

The names are CUDA's. What is queued runs when somebody waits for it and not before, so that memory
of the host which is used again too early shows in the results. Copies are held to what was
allocated. A kernel's file says which numpy function it is.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from enginewright.builder.targets.tensorrt.host_device import kv_store, sample

COMPUTE_CAPABILITY = "8.9"
MEMORY = 4 << 30  # bytes that the device says it has
cudaStreamNonBlocking = 1
cudaHostAllocDefault = 0
_STREAM = 7


class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3


class cudaStreamCaptureMode(IntEnum):
    cudaStreamCaptureModeThreadLocal = 1


class CUfunction_attribute(IntEnum):
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


_OK = (cudaError_t.cudaSuccess,)
_INVALID = (cudaError_t.cudaErrorInvalidValue,)


class HostGpu:
    """One device: its memory, its one stream, and what is being captured."""

    def __init__(self) -> None:
        self.device: dict[int, np.ndarray[Any, Any]] = {}
        self.host: dict[int, np.ndarray[Any, Any]] = {}
        self.handles: list[object] = []  # graphs, events and modules that were not given back
        self.replays = 0
        self._queue: deque[Callable[[], object]] = deque()
        self._captured: list[Callable[[], object]] | None = None

    def queue(self, work: Callable[[], object]) -> None:
        """Put work on the stream, or into the graph that is being captured."""
        target = self._queue if self._captured is None else self._captured
        target.append(work)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Do what is queued, in order, until it is enough."""
        while self._queue and not until():
            self._queue.popleft()()

    def begin_capture(self) -> None:
        self._captured = []

    def end_capture(self) -> list[Callable[[], object]]:
        captured, self._captured = self._captured, None
        assert captured is not None, "no capture has begun"
        return captured

    def free(self) -> int:
        return MEMORY - sum(array.nbytes for array in self.device.values())


GPU = HostGpu()


def _holds(blocks: dict[int, np.ndarray[Any, Any]], address: int, nbytes: int) -> bool:
    return any(
        start <= address and address + nbytes <= start + block.nbytes
        for start, block in blocks.items()
    )


def cudaDriverGetVersion() -> tuple[Any, ...]:
    return (*_OK, 13000)


def cudaGetDeviceCount() -> tuple[Any, ...]:
    return (*_OK, 1)


def cudaGetDeviceProperties(device: int) -> tuple[Any, ...]:
    major, minor = (int(part) for part in COMPUTE_CAPABILITY.split("."))
    return (
        *_OK,
        SimpleNamespace(name=b"host\0", major=major, minor=minor, totalGlobalMem=MEMORY),
    )


def cudaSetDevice(device: int) -> tuple[Any, ...]:
    return _OK if device == 0 else _INVALID


def cudaStreamCreateWithFlags(flags: int) -> tuple[Any, ...]:
    return (*_OK, _STREAM)


def cudaStreamDestroy(stream: int) -> tuple[Any, ...]:
    return _OK


def cudaStreamSynchronize(stream: int) -> tuple[Any, ...]:
    GPU.run()
    return _OK


def cudaMemGetInfo() -> tuple[Any, ...]:
    return (*_OK, GPU.free(), MEMORY)


def cudaMalloc(size: int) -> tuple[Any, ...]:
    if size > GPU.free():
        return cudaError_t.cudaErrorMemoryAllocation, 0
    block = np.empty(size, np.uint8)
    GPU.device[block.ctypes.data] = block
    return (*_OK, block.ctypes.data)


def cudaFree(address: int) -> tuple[Any, ...]:
    return _OK if GPU.device.pop(address, None) is not None else _INVALID


def cudaHostAlloc(size: int, flags: int) -> tuple[Any, ...]:
    block = np.full(size, 0xEE, np.uint8)
    GPU.host[block.ctypes.data] = block
    return (*_OK, block.ctypes.data)


def cudaFreeHost(address: int) -> tuple[Any, ...]:
    return _OK if GPU.host.pop(address, None) is not None else _INVALID


def cudaMemsetAsync(address: int, value: int, size: int, stream: int) -> tuple[Any, ...]:
    if not _holds(GPU.device, address, size):
        return _INVALID
    GPU.queue(lambda: ctypes.memset(address, value, size))
    return _OK


def cudaMemcpyAsync(
    target: int, source: int, size: int, kind: cudaMemcpyKind, stream: int
) -> tuple[Any, ...]:
    to = GPU.host if kind == cudaMemcpyKind.cudaMemcpyDeviceToHost else GPU.device
    of = GPU.host if kind == cudaMemcpyKind.cudaMemcpyHostToDevice else GPU.device
    if not _holds(to, target, size) or not _holds(of, source, size):
        return _INVALID
    GPU.queue(lambda: ctypes.memmove(target, source, size))
    return _OK


def cudaMemcpy2DAsync(
    target: int,
    target_pitch: int,
    source: int,
    source_pitch: int,
    width: int,
    height: int,
    kind: cudaMemcpyKind,
    stream: int,
) -> tuple[Any, ...]:
    for row in range(height):
        at = (target + row * target_pitch, source + row * source_pitch)
        if cudaMemcpyAsync(*at, width, kind, stream) != _OK:
            return _INVALID
    return _OK


class _Event:
    """When it happened; 0: not yet."""

    def __init__(self) -> None:
        self.time = 0.0

    def happen(self) -> None:
        self.time = time.perf_counter()


def _created(handle: object) -> tuple[Any, ...]:
    GPU.handles.append(handle)
    return (*_OK, handle)


def _destroyed(handle: object) -> tuple[Any, ...]:
    for index, one in enumerate(GPU.handles):
        if one is handle:
            del GPU.handles[index]
            return _OK
    return _INVALID


def cudaEventCreate() -> tuple[Any, ...]:
    return _created(_Event())


def cudaEventRecord(event: _Event, stream: int) -> tuple[Any, ...]:
    event.time = 0.0
    GPU.queue(event.happen)
    return _OK


def cudaEventSynchronize(event: _Event) -> tuple[Any, ...]:
    GPU.run(until=lambda: event.time > 0)
    return _OK if event.time > 0 else _INVALID


def cudaEventElapsedTime(start: _Event, end: _Event) -> tuple[Any, ...]:
    return (*_OK, (end.time - start.time) * 1000) if start.time and end.time else (*_INVALID, 0.0)


def cudaEventDestroy(event: _Event) -> tuple[Any, ...]:
    return _destroyed(event)


def cudaStreamBeginCapture(stream: int, mode: cudaStreamCaptureMode) -> tuple[Any, ...]:
    GPU.begin_capture()
    return _OK


def cudaStreamEndCapture(stream: int) -> tuple[Any, ...]:
    return _created(GPU.end_capture())


def cudaGraphInstantiate(graph: list[Callable[[], object]], flags: int) -> tuple[Any, ...]:
    return _created(list(graph))


def cudaGraphDestroy(graph: object) -> tuple[Any, ...]:
    return _destroyed(graph)


def cudaGraphExecDestroy(graph: object) -> tuple[Any, ...]:
    return _destroyed(graph)


def cudaGraphLaunch(graph: Sequence[Callable[[], object]], stream: int) -> tuple[Any, ...]:
    GPU.replays += 1
    for work in graph:
        GPU.queue(work)
    return _OK


# The driver: kernels


def cuModuleLoadData(image: bytes) -> tuple[Any, ...]:
    return _created(json.loads(image))


def cuModuleUnload(module: Any) -> tuple[Any, ...]:
    return _destroyed(module)


def cuModuleGetFunction(module: Any, name: bytes) -> tuple[Any, ...]:
    if module["symbol"] != name.decode():
        return (*_INVALID, None)
    if module["symbol"] == "sample":
        return (*_OK, sample)
    heads, width = module["heads"], module["width"]
    return (*_OK, lambda grid, arguments: kv_store(heads, width, grid, arguments))


def cuFuncSetAttribute(function: Any, attribute: int, value: int) -> tuple[Any, ...]:
    return _OK


def cuLaunchKernel(
    function: Callable[[Sequence[int], Sequence[int]], None],
    grid_x: int,
    grid_y: int,
    grid_z: int,
    block_x: int,
    block_y: int,
    block_z: int,
    shared: int,
    stream: int,
    parameters: tuple[Sequence[int], Sequence[Any]],
    extra: int,
) -> tuple[Any, ...]:
    values, kinds = parameters
    scratch = 2  # null pointers that Triton's kernels have behind their own
    assert len(values) == len(kinds)
    assert tuple(values[-scratch:]) == (0, 0)
    GPU.queue(lambda: function((grid_x, grid_y, grid_z), values[:-scratch]))
    return _OK
