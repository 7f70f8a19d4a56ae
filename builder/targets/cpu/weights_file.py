"""The weights file: weights are packed in parallel, a few at a time, and written in order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....runtime import machine
from ...progress import Progress
from .calls import PackedWeight
from .isa import IsaLevel
from .pack import pack

PAGE = 4096
_MOST_THREADS = 8  # beyond that the checkpoint cannot be read fast enough

Pieces = list[npt.NDArray[Any]]


def write_weights(
    packed: Sequence[PackedWeight], level: IsaLevel, path: Path, progress: Progress
) -> None:
    """Write every weight at its place; the file ends at the end of a page."""
    threads = min(machine.usable_cores(), _MOST_THREADS)
    with path.open("wb") as file, ThreadPoolExecutor(threads) as pool:
        for item, pieces in zip(packed, _ahead(pool, packed, level), strict=True):
            file.seek(item.offset)
            written = 0
            for piece in pieces:
                data = np.ascontiguousarray(piece).view(np.uint8)
                written += data.nbytes
                file.write(data.data)
            if written != item.layout.bytes:
                raise AssertionError(f"{item.weight.name}: {written} bytes of {item.layout.bytes}")
            progress.advance()
        last = packed[-1]
        file.truncate(-(-(last.offset + last.layout.bytes) // PAGE) * PAGE)


def _ahead(
    pool: ThreadPoolExecutor, packed: Sequence[PackedWeight], level: IsaLevel
) -> Iterator[Pieces]:
    """Pack in order, ahead of what is being written: together at most two of the largest weight."""

    def work(item: PackedWeight) -> Pieces:
        return list(pack(item.weight, item.layout, level))

    sizes = [math.prod(item.weight.sizes) for item in packed]
    waiting: deque[tuple[int, Future[Pieces]]] = deque()
    for item, size in zip(packed, sizes, strict=True):
        while waiting and sum(held for held, _ in waiting) + size > 2 * max(sizes):
            yield waiting.popleft()[1].result()
        waiting.append((size, pool.submit(work, item)))
    while waiting:
        yield waiting.popleft()[1].result()
