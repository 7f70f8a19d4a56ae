"""The memory plan: buffers that are never in use at the same time share one place in the arena."""

from __future__ import annotations

from collections.abc import Iterable

from .calls import Buffer


def plan_memory(buffers: Iterable[Buffer]) -> int:
    """Give every buffer its offset; returns the bytes a row of the arena that holds them all.

    Two buffers may overlap only if one's last interval is before the other's first: inside an
    interval between barriers threads run ahead of each other. Larger buffers are placed first, each
    at the lowest offset that is free for as long as it lives.
    """
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (-b.row_bytes, b.first)):
        rivals = sorted(
            (b for b in placed if b.first <= buffer.last and buffer.first <= b.last),
            key=lambda b: b.offset,
        )
        offset = 0
        for rival in rivals:
            if rival.offset - offset >= buffer.row_bytes:
                break
            offset = max(offset, rival.offset + rival.row_bytes)
        buffer.offset = offset
        placed.append(buffer)
    return max((b.offset + b.row_bytes for b in placed), default=0)
