"""enginewright beside other engines: `python -m tests.benchmarks.peers [options]`.

Makes an environment a peer under .cache/peers, converts the same weights for each, and measures
speed at the library level and over HTTP in interleaved rounds, and quality. Nothing here asserts.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from pathlib import Path

if __package__ in (None, ""):  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    __package__ = "tests.benchmarks"

from . import library, over_http, quality
from .peer import OURS, QUICK, all_peers
from .peer.base import Peer
from .peer.models import ROOT, smollm2
from .peer.process import Patience, claim_processor
from .peer.synthetic import synthetic_1b
from .report import Report
from .results import Results, say
from .roof import measure_roof

PHASES = ("quality", "library", "http")
MODELS = {"smollm2": smollm2, "synthetic-1b": synthetic_1b}
PATIENCE, QUICK_PATIENCE = 900.0, 100.0  # seconds a phase for repeats under foreign load


def main() -> None:
    """Measure what the command line asks for."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that servers are ended
    if options.nice is not None:
        claim_processor(options.nice)
    peers = _chosen(options.peers, options.quick)
    formats = _formats(options.formats, peers, options.quick)
    out = Results()
    model = MODELS[options.model]()
    variants = library.prepare(peers, model, formats, out)
    phases = options.only or (PHASES if options.model == "smollm2" else ("library",))
    patience = QUICK_PATIENCE if options.quick else PATIENCE
    try:
        if "quality" in phases:
            quality.quality(variants, model, out)
        if "library" in phases:
            out.roof = measure_roof()
            library.library(variants, options.rounds, Patience(patience), out)
            library.against_roof(variants, out)
        if "http" in phases:
            over_http.http(variants, max(1, options.rounds - 1), Patience(patience), out)
    except KeyboardInterrupt:
        out.stopped = True
        out.failures["the run"] = "stopped before its end; figures that a peer lacks have no ratio"
        say("peers: stopped; this is what there is")
    command = "python -m tests.benchmarks.peers " + shlex.join(sys.argv[1:])
    report = Report(out, peers, model, command.strip(), options.rounds)
    print(report.text())
    if options.json:
        report.write_json(options.json)
    if options.write_docs:
        suffix = "" if options.model == "smollm2" else f"-{options.model}"
        report.write_docs(ROOT / "docs" / f"benchmarks{suffix}.md")
    if not out.figures and not out.quality:
        say("peers: nothing could be measured")
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.peers",
        description="Measure enginewright beside other engines.",
    )
    names = ",".join(peer.name for peer in all_peers())
    parser.add_argument("--quick", action="store_true", help="llama.cpp and OpenVINO only")
    parser.add_argument("--peers", metavar="LIST", help=f"of {names}")
    parser.add_argument(
        "--formats", metavar="LIST", help="of every peer, those it has, for example int8,Q8_0"
    )
    parser.add_argument(
        "--model", choices=MODELS, default="smollm2", help="smollm2, or 1.1 billion random weights"
    )
    parser.add_argument("--rounds", type=int, default=3, help="one less over HTTP; 3 by default")
    parser.add_argument("--only", action="append", choices=PHASES, help="may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run as one object")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks*.md")
    parser.add_argument(
        "--nice",
        type=int,
        metavar="N",
        help="on a shared machine: run everything in a session of this nice value, e.g. -15",
    )
    options = parser.parse_args()
    if not 1 <= options.rounds <= 100:
        parser.error("--rounds must be from 1 to 100")
    return options


def _chosen(names: str | None, quick: bool) -> list[Peer]:
    peers = all_peers()
    wanted = names.split(",") if names else list(QUICK) if quick else [p.name for p in peers]
    unknown = set(wanted) - {peer.name for peer in peers}
    if unknown:
        raise SystemExit(
            f"peers: there is no {', '.join(sorted(unknown))}; there are "
            f"{', '.join(peer.name for peer in peers)}"
        )
    return [peer for peer in peers if peer.name in (*wanted, OURS)]


def _formats(text: str | None, peers: list[Peer], quick: bool) -> dict[str, tuple[str, ...]]:
    """Return the formats to measure of every peer; ours int8 is always among them."""
    if text:
        wanted = {"int8", *text.split(",")}
        return {peer.name: tuple(f for f in peer.formats if f in wanted) for peer in peers}
    return {peer.name: peer.quick_formats if quick else peer.formats for peer in peers}


if __name__ == "__main__":
    main()
