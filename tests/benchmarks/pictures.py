"""Pictures of a comparison for docs/, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .results import Results

_OURS, _THEIRS = "#c2410c", "#64748b"


def draw(results: Results, figures: Sequence[str], label: str, path: Path) -> bool:
    """Draw a bar a variant in a panel a figure; False if nothing was measured."""
    from matplotlib.figure import Figure

    names = [n for n in results.figures if any(results.median(n, f) for f in figures)]
    if not names:
        return False
    columns = min(3, len(figures))
    rows = -(-len(figures) // columns)
    height = 0.24 * len(names) + 0.7
    picture = Figure((4.2 * columns, height * rows), layout="constrained")
    grid = picture.subplots(rows, columns, squeeze=False, sharey=True)
    for number, axes in enumerate(grid.flat):
        if number >= len(figures):
            axes.set_visible(False)
            continue
        speeds = [results.median(name, figures[number]) or 0.0 for name in names]
        colors = [_OURS if name.startswith("enginewright") else _THEIRS for name in names]
        bars = axes.barh(names, speeds, color=colors)
        axes.bar_label(bars, [f"{speed:.0f}" if speed else "" for speed in speeds], fontsize=7)
        axes.set_title(figures[number], fontsize=9)
        axes.set_xlabel(label, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0][0].invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True
