"""Pictures of a benchmark. Needs matplotlib, the extra `[plot]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError
from .load import Outcome
from .report import latencies


def plot_run(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    """Draw one run: distributions of the latencies, and tokens a second over time."""
    figure, (left, middle, right) = _figure(title, 3)
    found = latencies([outcome for outcome in outcomes if not outcome.error])
    for axes, names in ((left, ("ttft", "e2el")), (middle, ("tpot", "itl", "itl_token"))):
        for name in names:
            values = sorted(value * 1e3 for value in found[name])
            if values:
                shares = [(number + 1) / len(values) for number in range(len(values))]
                axes.step(values, shares, where="post", label=name)
        axes.set(xlabel="milliseconds", ylabel="share of requests or tokens", ylim=(0, 1))
        axes.legend()
    moments = sorted(o.begun + moment for o in outcomes for moment, _ in o.chunks)
    if moments:
        bins = max(10, min(120, int(moments[-1] * 2)))
        counts, edges, _ = right.hist(moments, bins=bins, histtype="step")
        width = edges[1] - edges[0]
        right.clear()
        right.step(edges[:-1], [count / width for count in counts], where="post")
    right.set(xlabel="seconds since the start", ylabel="chunks a second")
    _save(figure, path)


def plot_sweep(reports: Sequence[dict[str, Any]], variable: str, path: Path) -> None:
    """Draw a sweep: throughput and latency against the load, and against each other."""
    figure, (left, middle, right) = _figure("sweep", 3)
    loads = [
        report["max_concurrency" if variable == "concurrency" else "request_rate"]
        for report in reports
    ]
    throughput = [report["output_throughput"] for report in reports]
    left.plot(loads, throughput, marker="o")
    left.set(xlabel=variable, ylabel="output tokens a second", ylim=(0, None))
    for key, label in (("median_tpot_ms", "TPOT p50"), ("p99_tpot_ms", "TPOT p99")):
        middle.plot(
            loads, [report.get(key, float("nan")) for report in reports], marker="o", label=label
        )
    for key, label in (("median_ttft_ms", "TTFT p50"), ("p99_ttft_ms", "TTFT p99")):
        middle.plot(
            loads,
            [report.get(key, float("nan")) for report in reports],
            marker="s",
            linestyle="--",
            label=label,
        )
    middle.set(xlabel=variable, ylabel="milliseconds", yscale="log")
    middle.legend()
    right.plot(
        [report.get("median_tpot_ms", float("nan")) for report in reports], throughput, marker="o"
    )
    for report, height in zip(reports, throughput, strict=True):
        place = (report.get("median_tpot_ms", 0.0), height)
        load = report["max_concurrency"] if variable == "concurrency" else report["request_rate"]
        right.annotate(f"{load:g}", place, textcoords="offset points", xytext=(5, -10))
    right.set(xlabel="TPOT p50, milliseconds", ylabel="output tokens a second", ylim=(0, None))
    _save(figure, path)


def _figure(title: str, columns: int) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            f"--plot needs the extra `enginewright[plot]` ({error}); install it"
        ) from error
    figure = Figure(figsize=(5 * columns, 4), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(1, columns)
    for one in axes:
        one.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise InputError(f"the plot cannot be written to {path}: {error}") from error
