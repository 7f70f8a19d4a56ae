"""What `--stats` prints: tokens, tokens per second, and where the time went."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..outputs import RequestOutput


class Stopwatch:
    """Times the answers of one command; starts when it is made."""

    def __init__(self, start_seconds: float, open_seconds: float) -> None:
        self._start_seconds = start_seconds  # of the executor process, opening included
        self._open_seconds = open_seconds  # of the engine alone
        self.restart()

    def restart(self) -> None:
        """Begin with a new answer."""
        self._begin = time.perf_counter()
        self._first: float | None = None

    def first(self) -> None:
        """Note the time of the first text; later calls change nothing."""
        if self._first is None:
            self._first = time.perf_counter()

    def summary(self, outputs: Sequence[RequestOutput]) -> str:
        """Return one line about the answers that have just ended."""
        now = time.perf_counter()
        prompt = sum(len(output.prompt_token_ids) for output in outputs)
        generated = sum(choice.length for output in outputs for choice in output.outputs)
        first = now if self._first is None else self._first
        waited, seconds = first - self._begin, now - self._begin
        parts = [
            f"start {self._start_seconds:.2f} s (engine open {self._open_seconds * 1e3:.0f} ms)",
            f"prompt {prompt} tokens, first token after {waited * 1e3:.0f} ms",
            f"answer {generated} tokens in {seconds:.2f} s",
        ]
        if generated > len(outputs) and now > first:
            rate = (generated - len(outputs)) / (now - first)
            parts.append(f"{rate:.1f} tokens/s after the first")
        return "; ".join(parts)
