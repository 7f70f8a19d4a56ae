"""The roof: what two threads of this machine read and multiply, and how near engines come."""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from enginewright.builder.targets.cpu.isa import find_level
from enginewright.builder.targets.cpu.toolchain import compile_engine
from enginewright.runtime import machine
from enginewright.runtime.artifact import open_engine

_THREADS, _REPEATS = 2, 5
_BYTES = 512 << 20  # a thread: far more than caches hold
_ROUNDS = 20_000_000
_CHAINS = 12 * 4  # products of a round and lane, as roof.c has them
_MULTIPLIED = ("int8", "uint4", "bf16", "f32", "fp8")


@dataclass(frozen=True, slots=True)
class Roof:
    """Both limits, of `_THREADS` threads together."""

    bytes_per_second: float
    macs_per_second: float  # multiplications of int8 with int8, each with its addition


def measure_roof() -> Roof:
    """Measure for some seconds; the best of several runs."""
    here = machine.detect()
    level = find_level(None, here)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "roof.so"
        compile_engine(Path(__file__).with_suffix(".c"), path, level, here.arch, None)
        library: Any = ctypes.CDLL(str(path))
    library.roof_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.roof_multiply.argtypes = [ctypes.c_int64]
    arrays = [np.ones(_BYTES // 8, np.int64) for _ in range(_THREADS)]
    reading = _best(lambda i: library.roof_read(arrays[i].ctypes.data, _BYTES))
    multiplying = _best(lambda i: library.roof_multiply(_ROUNDS))
    return Roof(
        bytes_per_second=_THREADS * _BYTES / reading,
        macs_per_second=_THREADS * _ROUNDS * _CHAINS * level.lanes / multiplying,
    )


def shares(roof: Roof, engine: Path, decode_1: float | None, prefill: float | None) -> list[str]:
    """Return one engine's tokens/s as shares of the roof: reading at 1 sequence, multiplying.

    A token reads every matrix once; one of a prompt multiplies with each, the head's apart.
    """
    manifest = open_engine(engine).manifest
    sizes = {t.name: t for t in manifest.tensors if len(t.shape) == 2}
    head = "head.weight" if "head.weight" in sizes else "embedding.weight"
    used = [
        tensor
        for name, tensor in sizes.items()
        if tensor.format in _MULTIPLIED and "rope" not in name
        if name == head or "embedding" not in name
    ]
    read = sum(tensor.bytes for tensor in used)
    macs = sum(int(np.prod(t.shape)) for t in used if t.name != head)
    return [
        f"{read / 1e6:.0f} MB",
        "" if decode_1 is None else f"{decode_1 * read / roof.bytes_per_second:.0%}",
        "" if prefill is None else f"{prefill * macs / roof.macs_per_second:.0%}",
    ]


def _best(work: Callable[[int], object]) -> float:
    """Return the shortest seconds in which all threads did their part."""
    times: list[float] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            list(pool.map(work, range(_THREADS)))
            times.append(time.perf_counter() - begin)
    return min(times)
