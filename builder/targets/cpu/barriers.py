"""Where threads must wait for each other, and the intervals between those places."""

from __future__ import annotations

from collections.abc import Iterable

from .calls import Buffer, KernelCall, Place, Split


class BarrierPlanner:
    """Walks calls in order, marks those that need a barrier, and notes each buffer's lifetime.

    Row ops into local memory may be done redundantly by every thread, so what they write needs no
    barrier for other row ops, and only the conditional one ("rows") for ops split by columns.
    """

    def __init__(self) -> None:
        self.interval = 0
        self._written: dict[Buffer, Split] = {}  # since the last barrier for all
        self._read: set[Buffer] = set()
        self._handed_out = False  # the last call's work was items, not parts

    def enter(self, carried: Iterable[Buffer]) -> None:
        """Begin a loop's body: what an earlier iteration left behind is taken as just written."""
        for buffer in carried:
            self._written[buffer] = Split.COLUMNS

    def plan(self, calls: Iterable[KernelCall]) -> None:
        """Set `barrier` on each call and `first`, `last` on the buffers."""
        for call in calls:
            call.barrier = self._needed(call)
            if call.barrier == "all":
                self._pass_barrier()
            elif call.barrier == "rows":
                self._written = {
                    b: s for b, s in self._written.items() if b.place is not Place.MINE
                }
            for operand in call.reads.values():
                self._note(operand.buffer)
                self._read.add(operand.buffer)
            for operand in call.writes.values():
                self._note(operand.buffer)
                self._written[operand.buffer] = call.split
            self._handed_out = call.split is Split.ITEMS

    def end_region(self) -> None:
        """A barrier for all that the driver itself has."""
        self._pass_barrier()

    def _needed(self, call: KernelCall) -> str:
        if call.starts_segment or self._handed_out:
            return "all"
        needed = ""
        for operand in call.reads.values():
            written = self._written.get(operand.buffer)
            if written is None:
                continue
            if written is not Split.ROWS or operand.buffer.place is Place.STREAM:
                return "all"
            if call.split is not Split.ROWS:
                needed = "rows"
        for operand in call.writes.values():
            if operand.buffer.place is Place.STREAM and operand.buffer in self._read:
                return "all"  # somebody may still be reading what this call writes over
        return needed

    def _pass_barrier(self) -> None:
        self.interval += 1
        self._written.clear()
        self._read.clear()
        self._handed_out = False

    def _note(self, buffer: Buffer) -> None:
        if buffer.first < 0:
            buffer.first = self.interval
        buffer.last = self.interval
