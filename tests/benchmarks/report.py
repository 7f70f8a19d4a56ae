"""Ratios, tables and docs/benchmarks.md from what was measured."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .library import DECODES, PREFILLS
from .peer import OURS
from .peer.base import Peer, Variant
from .peer.models import ROOT, Model
from .pictures import draw
from .results import Results

LIBRARY_FIGURES = [*(f"prefill_{n}" for n in PREFILLS), *(f"decode_{n}" for n in DECODES)]
HTTP_FIGURES = ["http_1", "http_8", "http_32", "http_shared_prefix"]
BURSTS = "http_bursts"
_RATIOS = [
    *(f"decode_{n}" for n in DECODES),
    *(f"prefill_{n}" for n in PREFILLS),
    *HTTP_FIGURES,
]
_FOUR_BITS = ("Q4_0", "Q4_1", "int4")
_ORIGINS = {  # of the weights, by page
    "benchmarks": "The model's weights are a Q4_1 file, dequantized to f32 for everybody; so "
    "llama.cpp's Q4_1, which reads the file itself, loses nothing\nby quantization, and Q4_0 loses "
    "twice.",
    "benchmarks-synthetic-1b": "The weights are random, in the shape of TinyLlama 1.1B: they show "
    "speed, and nothing about quality.",
}
_BUSY = 0.1  # foreign cores above which a figure is marked


class Report:
    """Everything that is said about one run."""

    def __init__(
        self, results: Results, peers: Sequence[Peer], model: Model, command: str, rounds: int
    ) -> None:
        self.results, self.peers, self.model = results, peers, model
        self.command, self.rounds = command, rounds
        self.kinds = {
            Variant(peer, fmt, path).name: (peer, fmt)
            for peer in peers
            for fmt in peer.formats
            for path in (*peer.paths, "")
        }
        self.facts = _machine()

    def kl(self, variant: str) -> float | None:
        """Return the mean KL of a variant's peer and format; None if it is not known."""
        peer, fmt = self.kinds[variant]
        found = self.results.quality.get(f"{peer.name} {fmt}")
        return found["mean_kl"] if found else None

    def ratios(self, fmt: str, path: str, by_quality: bool) -> dict[str, dict[str, Any] | None]:
        """Return figure -> ratio to the fastest peer, that peer, and both speeds.

        `by_quality`: among peers of 8 bits or more than whose KL ours is known to be no worse.
        """
        found: dict[str, dict[str, Any] | None] = {}
        for figure in _RATIOS:
            over_http = figure.startswith("http")
            ours = " ".join(x for x in (OURS, fmt, "" if over_http else path) if x)
            mine = self.results.median(ours, figure)
            rivals = {
                name: speed
                for name in self.results.figures
                if not name.startswith(OURS)
                and (speed := self.results.median(name, figure)) is not None
                and not (by_quality and self.kinds[name][1] in _FOUR_BITS)
                and not (by_quality and not self._no_worse(ours, name))
            }
            if mine is None or not rivals or (self.results.stopped and not self._complete(figure)):
                found[figure] = None
                continue
            best = max(rivals, key=lambda name: rivals[name])
            ratio = mine / rivals[best]
            found[figure] = {
                "ratio": round(ratio, 3),
                "best_peer": best,
                "ours": round(mine, 1),
                "theirs": round(rivals[best], 1),
            }
        return found

    def _complete(self, figure: str) -> bool:
        level = [f for f in _RATIOS if f.startswith("http") == figure.startswith("http")]
        return all(
            figure in found
            for found in self.results.figures.values()
            if any(other in found for other in level)
        )

    def _no_worse(self, ours: str, rival: str) -> bool:
        theirs, mine = self.kl(rival), self.kl(ours)
        return theirs is not None and mine is not None and mine <= theirs

    def as_json(self) -> dict[str, Any]:
        """Return the run as one object; `ratios_to_best_peer` is int8 through the executor."""

        def plain(ratios: dict[str, dict[str, Any] | None]) -> dict[str, float | None]:
            return {key: row["ratio"] if row else None for key, row in ratios.items()}

        best = self.ratios("int8", "executor", by_quality=True)
        fastest = self.ratios("int8", "executor", by_quality=False)
        return {
            "ratios_to_best_peer": plain(best),
            "ratios_to_fastest_peer": plain(fastest),
            "best_peer": best,
            "fastest_peer": fastest,
            "session_ratios_to_best_peer": plain(self.ratios("int8", "session", True)),
            "model": self.model.name,
            "roof": asdict(self.results.roof) if self.results.roof else None,
            "roof_shares": self.results.shares,
            "quality": self.results.quality,
            "figures": self.results.figures,
            "foreign_cores": self.results.foreign,
            "http": self.results.http,
            "failures": self.results.failures,
            "machine": self.facts,
            "command": self.command,
            "rounds": self.rounds,
        }

    def text(self) -> str:
        """Return all tables as Markdown."""
        parts = [
            self._ratio_table(),
            self._speed_table("Library: tokens/s, medians of the rounds", LIBRARY_FIGURES),
            self._roof_table(),
            self._speed_table("HTTP: output tokens/s", [*HTTP_FIGURES, BURSTS]),
            self._latency_table(),
            self._quality_table(),
        ]
        if self.results.failures:
            rows = [f"* {what}: {why}" for what, why in self.results.failures.items()]
            parts.append("### What failed\n\n" + "\n".join(rows) + "\n")
        notes = {p.name: p.http_note for p in self.peers if p.http_note != "HTTP server"}
        rows = [f"* {name} over HTTP: {note}." for name, note in notes.items()]
        rows.append(
            f"* `!` marks figures during which other processes used more than {_BUSY} cores "
            "(median of the rounds); they are lower bounds."
        )
        parts.append("### Notes\n\n" + "\n".join(rows) + "\n")
        return "\n".join(part for part in parts if part)

    def _ratio_table(self) -> str:
        lines = []
        for quality, title in (
            (True, "Ratio to the fastest peer of 8 bits or more with a KL no better than ours"),
            (False, "Ratio to the fastest peer, whatever its format and KL"),
        ):
            rows = []
            for path in ("executor", "session"):
                for figure, row in self.ratios("int8", path, quality).items():
                    if row and not (path == "session" and figure.startswith("http")):
                        cells = (figure, path, row["ours"], row["theirs"], row["best_peer"])
                        rows.append([*map(str, cells), f"**{row['ratio']:.2f}**"])
            if rows:
                head = ["figure", "our path", "int8 tok/s", "peer tok/s", "peer", "ratio"]
                lines.append(f"### {title}\n\n{_table(head, rows)}")
        return "\n".join(lines)

    def _speed_table(self, title: str, figures: list[str]) -> str:
        rows = []
        for name in self.results.figures:
            if any(self.results.median(name, figure) is not None for figure in figures):
                kl = self.kl(name)
                cells = [self._cell(name, figure) for figure in figures]
                rows.append([name, f"{kl:.4f}" if kl is not None else "?", *cells])
        if not rows:
            return ""
        return f"### {title}\n\n{_table(['engine', 'KL', *figures], rows)}"

    def _roof_table(self) -> str:
        roof = self.results.roof
        if roof is None or not self.results.shares:
            return ""
        head = [
            "engine",
            "read a token",
            "decode_1: of the reading",
            "prefill_1024: of int8 products",
        ]
        rows = [[name, *cells] for name, cells in self.results.shares.items()]
        return (
            "### Our engines and the roof\n\nTwo threads read "
            f"{roof.bytes_per_second / 1e9:.1f} GB/s from memory and multiply "
            f"{roof.macs_per_second / 1e9:.0f} G int8 pairs a second here, at most.\n\n"
            + _table(head, rows)
        )

    def _cell(self, name: str, figure: str) -> str:
        values = self.results.figures[name].get(figure)
        if not values:
            return ""
        middle = statistics.median(values)
        foreign = statistics.median(self.results.foreign[name][figure])
        low, high = min(values), max(values)
        mark = "!" if foreign > _BUSY else ""
        return f"{middle:.0f}{mark} [{low:.0f}-{high:.0f}]"

    def _latency_table(self) -> str:
        rows = []
        keys = ("median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms", "p99_e2el_ms")
        for name, figures in self.results.http.items():
            for figure, runs in figures.items():
                middle = [sorted(run[key] or 0 for run in runs)[len(runs) // 2] for key in keys]
                rows.append([name, figure, *(f"{value:.1f}" for value in middle)])
        if not rows:
            return ""
        table = _table(["engine", "load", *keys], rows)
        return f"### HTTP: latency in ms, medians of the rounds\n\n{table}"

    def _quality_table(self) -> str:
        keys = ("mean_kl", "median_kl", "p99_kl")
        rows = [
            [name, *(f"{q[key]:.5f}" for key in keys), f"{q['argmax_agreement']:.3f}"]
            for name, q in sorted(self.results.quality.items(), key=lambda x: x[1]["mean_kl"])
        ]
        if not rows:
            return ""
        head = ["engine", "mean KL", "median", "p99", "argmax agreement"]
        return f"### Quality: KL(f32 || engine) over `kl_text.txt`\n\n{_table(head, rows)}"

    def write_docs(self, path: Path) -> None:
        """Replace the tables in docs/benchmarks.md, or make the page."""
        rows = [f"* {key}: {value}" for key, value in self.facts.items()]
        rows += [f"* {peer.name}: {peer.version}" for peer in self.peers]
        head = (
            f"# Benchmarks: {self.model.name}\n\nenginewright beside other engines: the same "
            "model from the same weights, two threads, interleaved rounds.\n"
            f"{_ORIGINS[path.stem]}\n\n"
            "Decode: that many sequences of 128 tokens, 64 new ones each. HTTP: chat prompts of "
            "about 127 tokens, 64 generated each; the shared prefix is 512 words.\n`executor` and "
            "HTTP are the whole product; `session` is the compiled engine alone.\n\n"
            f"Made by `{self.command}`.\n\n" + "\n".join(rows) + "\n\n"
        )
        path.write_text(head + self._pictures(path) + self.text())

    def _pictures(self, page: Path) -> str:
        """Draw what was measured next to a page, and return the lines that show it."""
        lines: list[str] = []
        for level, figures in (("library", LIBRARY_FIGURES), ("http", HTTP_FIGURES)):
            picture = page.parent / "images" / f"{page.stem}-{level}.svg"
            if draw(self.results, figures, "tokens/s", picture):
                lines.append(f"![{level}: tokens a second](images/{picture.name})\n\n")
        return "".join(lines)

    def write_json(self, path: Path) -> None:
        """Write the run as one JSON object."""
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _machine() -> dict[str, str]:
    text = Path("/proc/cpuinfo").read_text()
    facts = {
        line.split(":")[0].strip(): line.split(":")[1].strip()
        for line in text.splitlines()
        if ":" in line
    }
    flags = facts.get("flags", "").split()
    useful = [
        f for f in flags if f.startswith("amx") or f in ("avx2", "avx512_vnni", "avx512_bf16")
    ]
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": time.strftime("%F"),
        "processor": f"{facts.get('model name', '?')} (family {facts.get('cpu family')}, model "
        f"{facts.get('model')}), {text.count('processor	:')} cores, {', '.join(useful)}",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "commit": done.stdout.strip(),
    }
