"""A build on the screen: one line a phase, with its time and the peak of memory so far."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from .units import human_bytes, human_seconds

_PHASE_WIDTH = 16


class BuildDisplay:
    """The observer that `enginewright build` gives to the builder; a context manager.

    On a terminal the running phase has a bar; elsewhere only the finished phases are printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop drawing and give the terminal back."""
        self._bars.stop()

    def phase_started(self, phase: str, total: int | None) -> None:
        """Show the phase as running."""
        self._tasks[phase] = self._bars.add_task(phase.ljust(_PHASE_WIDTH), total=total, note="")

    def phase_advanced(self, phase: str, steps: int, note: str) -> None:
        """Move the phase's bar."""
        self._bars.update(self._tasks[phase], advance=steps, note=note)

    def phase_ended(self, phase: str, seconds: float, peak_memory_bytes: int) -> None:
        """Replace the phase's bar by its line."""
        self._bars.remove_task(self._tasks.pop(phase))
        self._console.print(
            f"  {phase:<{_PHASE_WIDTH}} {human_seconds(seconds):>10}"
            f"   peak memory {human_bytes(peak_memory_bytes):>8}"
        )
