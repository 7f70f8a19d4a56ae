"""Sizes and times in words, for the screen."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """Return a size in decimal units: `812 B`, `1.5 MB`, `135 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"


def human_count(count: float) -> str:
    """Return a number of things: `812`, `135 M`, `7.2 B`."""
    for unit in ("", " K", " M", " B", " T"):
        if count < 999.5 or unit == " T":
            break
        count /= 1000
    return f"{count:.0f}{unit}" if not unit or count >= 99.95 else f"{count:.1f}{unit}"


def human_seconds(seconds: float) -> str:
    """Return a duration: `12 ms`, `3.4 s`, `2 min 05 s`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
