"""What a GPU session needs of a device and of a loaded plan; CUDA and TensorRT give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Device(Protocol):
    """One device and one stream on it: calls are queued in order unless they say otherwise.

    Addresses are plain integers. Errors of the device are StepFailedError or OutOfMemoryError.
    """

    compute_capability: str

    def free_memory(self) -> int:
        """Return the bytes that can be allocated now."""
        ...

    def allocate(self, nbytes: int, what: str) -> int:
        """Return the address of new memory, every byte zero; raises OutOfMemoryError."""
        ...

    def allocate_host(self, nbytes: int) -> Bytes:
        """Return memory of the host that the device copies from and to without delay."""
        ...

    def upload(self, target: int, source: Bytes) -> None:
        """Copy from memory that `allocate_host` gave; it must stay as it is until then."""
        ...

    def download(self, target: Bytes, source: int) -> None:
        """Copy to memory that `allocate_host` gave."""
        ...

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy within the device."""
        ...

    def copy_rows(self, target: int, source: int, nbytes: int, rows: int, stride: int) -> None:
        """Copy `rows` pieces of `nbytes`, `stride` bytes apart in both places."""
        ...

    def launch(
        self, kernel: str, variant: str, grid: tuple[int, int], arguments: Sequence[int]
    ) -> None:
        """Queue a kernel of runtime.cuda_contract; its arguments are addresses and numbers."""
        ...

    def has_kernel(self, kernel: str, variant: str) -> bool:
        """Whether `launch` would find it."""
        ...

    def record(self) -> Any:
        """Return an event that happens when all that was queued so far is done."""
        ...

    def wait(self, event: Any) -> None:
        """Block until the event has happened."""
        ...

    def seconds_between(self, first: Any, second: Any) -> float:
        """Return the time between two events that have happened."""
        ...

    def begin_capture(self) -> None:
        """Let what is queued from now on be noted instead of run."""
        ...

    def end_capture(self) -> Any:
        """Return what was noted, as a graph."""
        ...

    def replay(self, graph: Any) -> None:
        """Queue a graph."""
        ...

    def close(self) -> None:
        """Wait for the device and give all memory back."""
        ...


class PlanContext(Protocol):
    """A compiled plan that is ready to run: shapes and addresses are set, then it is queued."""

    def use_profile(self, index: int) -> None:
        """Choose the optimization profile of the runs to come; another one forgets the shapes."""
        ...

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Set the shape of an input; raises StepFailedError if the profile does not take it.

        What is set before the first profile is chosen holds for all of them.
        """
        ...

    def bind(self, name: str, address: int) -> None:
        """Set where an input or output lies."""
        ...

    def execute(self) -> None:
        """Queue the plan on the device's stream."""
        ...

    def close(self) -> None:
        """Give the plan's memory back."""
        ...
