"""CUDA through cuda-python: whether a GPU answers, and a device with one stream. Nothing else does.

`probe` comes first, always: without a driver TensorRT hands out pointers that crash on use.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .cuda_contract import SESSION_KERNELS
from .device import Bytes
from .errors import EngineDamagedError, IncompatibleMachineError, OutOfMemoryError, StepFailedError
from .manifest import KernelFacts

INSTALL = "pip install 'enginewright[cuda]'"
_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver, also where there is no driver at all
_NO_DEVICE = 100
_OUT_OF_MEMORY = 2
_NULLS = 2  # scratch pointers that Triton appends to a kernel's parameters, unused by ours
_TYPES = {"pointer": ctypes.c_void_p, "i32": ctypes.c_int32}
_DEFAULT_SHARED = 48 << 10  # bytes of a block that need no asking


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One device that the driver lists."""

    name: str
    compute_capability: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Probe:
    """What answers here. `reason` says why nothing does, and is empty if something does."""

    reason: str
    driver: str = ""  # the newest CUDA that the driver speaks
    devices: tuple[GpuDevice, ...] = ()


def probe() -> Probe:
    """Look for a driver and its devices; never raises, never touches TensorRT."""
    try:
        runtime = importlib.import_module("cuda.bindings.runtime")
    except (ImportError, OSError) as error:
        return Probe(f"the Python package cuda-bindings cannot be imported ({error}): {INSTALL}")
    return probe_with(runtime)


def probe_with(runtime: Any) -> Probe:
    """Probe through a module like cuda.bindings.runtime."""
    try:
        status, number = runtime.cudaDriverGetVersion()
        driver = f"{number // 1000}.{number % 1000 // 10}" if int(status) == 0 else ""
        status, count = runtime.cudaGetDeviceCount()
    except Exception as error:  # the package raises what its loader finds missing
        return Probe(f"the CUDA runtime does not start ({type(error).__name__}: {error})")
    if int(status) == _INSUFFICIENT_DRIVER:
        if not driver or driver == "0.0":
            return Probe("there is no NVIDIA driver here")
        return Probe(
            f"the NVIDIA driver speaks CUDA {driver}, older than the runtime of cuda-bindings; "
            "update the driver",
            driver,
        )
    if int(status) == _NO_DEVICE or (int(status) == 0 and count == 0):
        return Probe("the NVIDIA driver lists no device", driver)
    if int(status):
        return Probe(f"the CUDA runtime reports {_named(status)}", driver)
    return Probe("", driver, tuple(_device(runtime, index) for index in range(count)))


def _device(runtime: Any, index: int) -> GpuDevice:
    _, facts = runtime.cudaGetDeviceProperties(index)
    name = facts.name.decode() if isinstance(facts.name, bytes) else str(facts.name)
    return GpuDevice(name.strip("\0"), f"{facts.major}.{facts.minor}", int(facts.totalGlobalMem))


class CudaDevice:
    """The first device and one stream on it (runtime.device.Device)."""

    def __init__(self, folder: Path, kernels: Sequence[KernelFacts]) -> None:
        """`kernels` are the engine's, in `folder`.

        Raises IncompatibleMachineError with the probe's reason if nothing answers, and
        EngineDamagedError for a kernel that cannot be loaded.
        """
        found = probe()
        if found.reason:
            raise IncompatibleMachineError(f"the engine needs an NVIDIA GPU, and {found.reason}")
        self.compute_capability = found.devices[0].compute_capability
        self._runtime: Any = importlib.import_module("cuda.bindings.runtime")
        self._driver: Any = importlib.import_module("cuda.bindings.driver")
        self._memory: list[int] = []
        self._host: list[int] = []
        self._events: list[Any] = []
        self._functions: dict[tuple[str, str], tuple[Any, KernelFacts]] = {}
        self._modules: list[Any] = []
        self._graphs: list[Any] = []
        self._call("cudaSetDevice", 0)
        flags = self._runtime.cudaStreamNonBlocking
        self.stream: Any = self._call("cudaStreamCreateWithFlags", flags)
        try:
            for facts in kernels:
                if facts.compute_capability == self.compute_capability:
                    self._load(folder, facts)
        except BaseException:
            self.close()
            raise

    def _load(self, folder: Path, facts: KernelFacts) -> None:
        driver, function = self._driver, None
        try:
            status, module = driver.cuModuleLoadData((folder / facts.file).read_bytes())
        except OSError as error:
            raise EngineDamagedError(f"{folder / facts.file} cannot be read: {error}") from error
        if not int(status):
            self._modules.append(module)
            status, function = driver.cuModuleGetFunction(module, facts.symbol.encode())
        if int(status):
            raise EngineDamagedError(
                f"the kernel {facts.symbol} of {folder / facts.file} cannot be loaded "
                f"({_named(status)}); build the engine again"
            )
        self._functions[facts.name, facts.variant] = (function, facts)
        if facts.shared_bytes > _DEFAULT_SHARED:
            names = driver.CUfunction_attribute
            most = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(driver.cuFuncSetAttribute(function, most, facts.shared_bytes))

    # Memory

    def free_memory(self) -> int:
        """Return the bytes that the device has free."""
        return int(self._call("cudaMemGetInfo")[0])

    def allocate(self, nbytes: int, what: str) -> int:
        """Return the address of zeros. Raises OutOfMemoryError with the numbers."""
        status, address = self._runtime.cudaMalloc(max(nbytes, 1))
        if int(status) == _OUT_OF_MEMORY:
            raise OutOfMemoryError(
                f"the device refused {nbytes} bytes for {what}, and has {self.free_memory()} free; "
                "lower --max-batch-size, --max-num-tokens or --kv-cache-memory"
            )
        self._check((status,))
        self._memory.append(int(address))
        self._call("cudaMemsetAsync", int(address), 0, max(nbytes, 1), self.stream)
        return int(address)

    def allocate_host(self, nbytes: int) -> Bytes:
        """Return pinned memory."""
        size = max(nbytes, 1)
        address = int(self._call("cudaHostAlloc", size, self._runtime.cudaHostAllocDefault))
        self._host.append(address)
        memory = (ctypes.c_uint8 * size).from_address(address)
        return np.ctypeslib.as_array(memory)[:nbytes]

    def upload(self, target: int, source: Bytes) -> None:
        """Queue a copy to the device."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._copy(target, source.ctypes.data, source.nbytes, kind)

    def download(self, target: Bytes, source: int) -> None:
        """Queue a copy to the host."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._copy(target.ctypes.data, source, target.nbytes, kind)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy within the device."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._copy(target, source, nbytes, kind)

    def _copy(self, target: int, source: int, nbytes: int, kind: Any) -> None:
        self._call("cudaMemcpyAsync", target, source, nbytes, kind, self.stream)

    def copy_rows(self, target: int, source: int, nbytes: int, rows: int, stride: int) -> None:
        """Queue a copy of rows."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        copy = (target, stride, source, stride, nbytes, rows, kind, self.stream)
        self._call("cudaMemcpy2DAsync", *copy)

    # Kernels

    def has_kernel(self, kernel: str, variant: str) -> bool:
        """Whether the engine brought it for this device."""
        return (kernel, variant) in self._functions

    def launch(
        self, kernel: str, variant: str, grid: tuple[int, int], arguments: Sequence[int]
    ) -> None:
        """Queue a kernel of the contract."""
        kinds = [argument.kind for argument in SESSION_KERNELS[kernel].arguments]
        self._start(kernel, variant, (*grid, 1), arguments, kinds)

    def _start(
        self,
        kernel: str,
        variant: str,
        grid: tuple[int, int, int],
        arguments: Sequence[int],
        kinds: Sequence[str],
    ) -> None:
        function, facts = self._functions[kernel, variant]
        types = [_TYPES[kind] for kind in kinds]
        parameters = ((*arguments, *[0] * _NULLS), (*types, *[ctypes.c_void_p] * _NULLS))
        block = (facts.threads, 1, 1)
        self._check(
            self._driver.cuLaunchKernel(
                function, *grid, *block, facts.shared_bytes, int(self.stream), parameters, 0
            )
        )

    # Events and graphs

    def record(self) -> Any:
        """Return an event behind all that is queued."""
        event = self._call("cudaEventCreate")
        self._events.append(event)
        self._call("cudaEventRecord", event, self.stream)
        return event

    def wait(self, event: Any) -> None:
        """Wait for an event; the GIL is free meanwhile."""
        self._call("cudaEventSynchronize", event)

    def seconds_between(self, first: Any, second: Any) -> float:
        """Return the device's own time between two events, and forget them."""
        seconds = self._call("cudaEventElapsedTime", first, second) / 1000.0
        for event in (first, second):
            self._events.remove(event)
            self._call("cudaEventDestroy", event)
        return float(seconds)

    def begin_capture(self) -> None:
        """Note what is queued from here on."""
        mode = self._runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self.stream, mode)

    def end_capture(self) -> Any:
        """Return what was noted, ready to be replayed."""
        noted = self._call("cudaStreamEndCapture", self.stream)
        graph = self._call("cudaGraphInstantiate", noted, 0)
        self._graphs.append(graph)
        self._call("cudaGraphDestroy", noted)
        return graph

    def replay(self, graph: Any) -> None:
        """Queue a graph."""
        self._call("cudaGraphLaunch", graph, self.stream)

    def close(self) -> None:
        """Wait for the stream and give back what was taken."""
        runtime = self._runtime
        runtime.cudaStreamSynchronize(self.stream)
        for graph in self._graphs:
            runtime.cudaGraphExecDestroy(graph)
        for event in self._events:
            runtime.cudaEventDestroy(event)
        for address in self._memory:
            runtime.cudaFree(address)
        for address in self._host:
            runtime.cudaFreeHost(address)
        for module in self._modules:
            self._driver.cuModuleUnload(module)
        runtime.cudaStreamDestroy(self.stream)
        for held in (self._memory, self._host, self._events, self._modules, self._graphs):
            held.clear()

    def _call(self, function: str, *arguments: Any) -> Any:
        """Call the runtime; returns its one result, all of several, or nothing."""
        results = getattr(self._runtime, function)(*arguments)
        self._check(results)
        return results[1] if len(results) == 2 else results[1:]

    def _check(self, results: Sequence[Any]) -> None:
        status = results[0]
        if int(status) == _OUT_OF_MEMORY:
            raise OutOfMemoryError(
                "the device is out of memory; lower --max-batch-size or --kv-cache-memory"
            )
        if int(status):
            raise StepFailedError(f"the device reports {_named(status)}")


def _named(status: Any) -> str:
    return f"{getattr(status, 'name', 'error')} ({int(status)})"
