"""Launches kernels on a device: Triton compiles them, runtime.cuda loads and starts them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from enginewright.builder.targets.tensorrt import kernels
from enginewright.plugins.cuda.variants import Variant
from enginewright.runtime.cuda import CudaDevice
from enginewright.runtime.manifest import KernelFacts

from .kernel_sample_cases import Array


class DeviceLaunch:
    """A kernel_sample_cases.Launch for the first device of this machine."""

    def __init__(self, folder: Path, capability: str) -> None:
        self._folder = folder
        self._capability = capability

    def __call__(
        self, variant: Variant, grid: tuple[int, ...], *arguments: Any, **changes: Any
    ) -> None:
        variant = dataclasses.replace(variant, constants={**variant.constants, **changes})
        folder, facts = self._compile(variant)
        device = CudaDevice(folder, [facts])
        try:
            x, y, z = (*grid, 1, 1)[:3]
            self._start(device, facts, (x, y, z), arguments)
        finally:
            device.close()

    def _compile(self, variant: Variant) -> tuple[Path, KernelFacts]:
        name = hashlib.sha256(json.dumps(variant.to_json(), sort_keys=True).encode()).hexdigest()
        folder = self._folder / name[:16]
        folder.mkdir(exist_ok=True)
        [kernel] = kernels.compile_kernels([variant], [self._capability], folder)
        return folder, kernel.facts

    def _start(
        self,
        device: CudaDevice,
        facts: KernelFacts,
        grid: tuple[int, int, int],
        arguments: tuple[Any, ...],
    ) -> None:
        """Copy arrays there, run, and copy all of them back: any may have been written."""
        there: dict[int, tuple[int, Array]] = {}
        values: list[int] = []
        for argument in arguments:
            if not isinstance(argument, np.ndarray):
                values.append(argument)
                continue
            if id(argument) not in there:  # a cache may be passed twice, as a plugin's is
                address = device.allocate(argument.nbytes, "an argument")
                host = device.allocate_host(argument.nbytes)
                host[:] = np.ascontiguousarray(argument).reshape(-1).view(np.uint8)
                device.upload(address, host)
                there[id(argument)] = (address, argument)
            values.append(there[id(argument)][0])
        kinds = ["pointer" if isinstance(one, np.ndarray) else "i32" for one in arguments]
        device._start(facts.name, facts.variant, grid, values, kinds)
        for address, array in there.values():
            host = device.allocate_host(array.nbytes)
            device.download(host, address)
            device.wait(device.record())
            if array.flags.writeable:
                array.reshape(-1).view(np.uint8)[:] = host
