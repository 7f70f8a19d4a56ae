"""What was measured, as plain data."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from typing import Any

from .roof import Roof


@dataclass
class Results:
    """Everything measured: variant -> figure -> values of the rounds, and what failed."""

    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    foreign: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    http: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    quality: dict[str, dict[str, float]] = field(default_factory=dict)  # peer + format -> ...
    failures: dict[str, str] = field(default_factory=dict)
    roof: Roof | None = None
    shares: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # variant -> roof's
    stopped: bool = False  # before its end: a figure that a peer lacks says nothing about it

    def add(self, variant: str, figure: str, value: float, foreign: float) -> None:
        """Add one round's value of one figure."""
        self.figures.setdefault(variant, {}).setdefault(figure, []).append(value)
        self.foreign.setdefault(variant, {}).setdefault(figure, []).append(foreign)

    def median(self, variant: str, figure: str) -> float | None:
        """Return the median of the rounds; None where there is none."""
        values = self.figures.get(variant, {}).get(figure)
        return statistics.median(values) if values else None

    def fail(self, variant: str, what: str, error: Exception) -> None:
        """Note a failure; the first one of a variant counts."""
        reason = str(error).strip() or type(error).__name__
        self.failures.setdefault(f"{variant} ({what})", reason[:400])
        say(f"  {variant}: {what} failed: {reason[:200]}")


def say(text: str) -> None:
    """Tell the person who waits."""
    print(text, file=sys.stderr, flush=True)
