"""The engine's own profile as a table: time, share and bandwidth of each kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...runtime.manifest import TensorFacts

_LINEAR = re.compile(r"linear (\d+)x(\d+)")


@dataclass(frozen=True, slots=True)
class KernelTime:
    """What one kernel took; kernels of one name are added up."""

    name: str
    seconds: float  # of one thread, on average
    share: float  # of all kernels, waiting included
    calls: int
    gigabytes_per_second: float | None  # of weights read; None where there are none


def kernel_times(
    slots: Iterable[tuple[str, float, int]],
    tensors: Sequence[TensorFacts],
    steps: int,
    threads: int,
) -> list[KernelTime]:
    """Return the kernels of a profile, the longest first.

    `slots` are those of `read_profile`, seconds of all threads added up. Each step reads every
    weight of a linear once.
    """
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for name, time, count in slots:
        seconds[name] = seconds.get(name, 0.0) + time / threads
        calls[name] = calls.get(name, 0) + count
    total = sum(seconds.values()) or 1.0
    return sorted(
        (
            KernelTime(name, time, time / total, calls[name], _rate(name, time, tensors, steps))
            for name, time in seconds.items()
            if time
        ),
        key=lambda kernel: -kernel.seconds,
    )


def _rate(name: str, seconds: float, tensors: Sequence[TensorFacts], steps: int) -> float | None:
    found = _LINEAR.match(name)
    if found is None:
        return None
    shape = (int(found[1]), int(found[2]))
    size = sum(tensor.bytes for tensor in tensors if tuple(tensor.shape) == shape)
    return size * steps / seconds / 1e9 if size else None
