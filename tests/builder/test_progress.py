"""Phases are told in order, with their time and the build's peak memory."""

import pytest

from enginewright.builder.memory import PeakMemory
from enginewright.builder.progress import Progress


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def phase_started(self, phase: str, total: int | None) -> None:
        self.events.append(("started", phase, total))

    def phase_advanced(self, phase: str, steps: int, note: str) -> None:
        self.events.append(("advanced", phase, steps, note))

    def phase_ended(self, phase: str, seconds: float, peak_memory_bytes: int) -> None:
        assert seconds >= 0
        assert peak_memory_bytes >= 0
        self.events.append(("ended", phase))


def test_phases_nest_and_are_told_in_order() -> None:
    recorder = Recorder()
    progress = Progress(recorder)
    with progress.phase("outer", 3):
        progress.advance(2, "note")
        with progress.phase("inner"):
            progress.advance()
    assert recorder.events == [
        ("started", "outer", 3),
        ("advanced", "outer", 2, "note"),
        ("started", "inner", None),
        ("advanced", "inner", 1, ""),
        ("ended", "inner"),
        ("ended", "outer"),
    ]
    assert set(progress.times) == {"outer", "inner"}


def test_a_phase_entered_twice_adds_up() -> None:
    progress = Progress()
    with progress.phase("hash"):
        pass
    first = progress.times["hash"]
    with progress.phase("hash"):
        pass
    assert progress.times["hash"] > first


def fail(progress: Progress) -> None:
    with progress.phase("compile"):
        raise ValueError("no compiler")


def test_a_phase_that_fails_is_timed_but_not_told_as_ended() -> None:
    recorder = Recorder()
    progress = Progress(recorder)
    with pytest.raises(ValueError, match="no compiler"):
        fail(progress)
    assert recorder.events == [("started", "compile", None)]
    assert "compile" in progress.times


def test_memory_that_was_given_back_is_in_the_peak() -> None:
    size = 96 << 20
    memory = PeakMemory()
    block = bytearray(b"x") * size
    del block
    assert memory.growth() >= size * 0.9
