"""Progress of a build: phases with their time and memory, told to one observer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from .memory import PeakMemory


class BuildObserver(Protocol):
    """Whoever shows a build to a person. Calls come from the building thread, phases in order."""

    def phase_started(self, phase: str, total: int | None) -> None:
        """A phase begins; `total` is its number of steps, if it is known."""
        ...

    def phase_advanced(self, phase: str, steps: int, note: str) -> None:
        """A phase has done `steps` more; `note` says what it is at, or is empty."""
        ...

    def phase_ended(self, phase: str, seconds: float, peak_memory_bytes: int) -> None:
        """A phase is done; the memory is the build's peak so far."""
        ...


class SilentObserver:
    """Shows nothing."""

    def phase_started(self, phase: str, total: int | None) -> None:
        """Do nothing."""

    def phase_advanced(self, phase: str, steps: int, note: str) -> None:
        """Do nothing."""

    def phase_ended(self, phase: str, seconds: float, peak_memory_bytes: int) -> None:
        """Do nothing."""


class Progress:
    """Times the phases of one build and watches its memory."""

    def __init__(self, observer: BuildObserver | None = None) -> None:
        self._observer: BuildObserver = observer or SilentObserver()
        self._memory = PeakMemory()
        self._open: list[str] = []
        self.times: dict[str, float] = {}  # seconds of each phase that has ended

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[None]:
        """Run the body as the phase `name`; a phase that is entered twice adds up."""
        self._open.append(name)
        self._observer.phase_started(name, total)
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self.times[name] = self.times.get(name, 0.0) + seconds
            self._open.pop()
        self._observer.phase_ended(name, seconds, self._memory.growth())

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Report that the innermost open phase has done `steps` more."""
        if self._open:
            self._observer.phase_advanced(self._open[-1], steps, note)

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory that the build has taken so far, beyond what was there before it."""
        return self._memory.growth()
