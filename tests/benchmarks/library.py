"""The library level: prefill and decode of every peer, in interleaved rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from .peer import OURS
from .peer.base import Library, Peer, PeerError, Variant, WorkerLibrary
from .peer.models import Model
from .peer.process import Patience, ProcessError
from .results import Results, say
from .roof import shares

CONTEXT, NEW = 128, 64  # tokens
PREFILLS = (128, 1024)
DECODES = (1, 8, 32, 64)


def prepare(
    peers: Sequence[Peer], model: Model, formats: Mapping[str, Sequence[str]], out: Results
) -> list[Variant]:
    """Install every peer and make its weights; what fails is noted and left out."""
    variants: list[Variant] = []
    for peer in peers:
        try:
            peer.prepare(model)
            peer.install()
        except (PeerError, OSError, StopIteration) as error:
            out.fail(peer.name, "installation", error)
            continue
        for fmt in formats[peer.name]:
            say(f"peers: weights of {peer.name} {fmt}")
            try:
                peer.path_of(fmt)
            except (PeerError, OSError, StopIteration) as error:
                out.fail(f"{peer.name} {fmt}", "weights", error)
                continue
            variants += [Variant(peer, fmt, path) for path in peer.paths]
    return variants


def against_roof(variants: Sequence[Variant], out: Results) -> None:
    """Note what our engines, by themselves, use of what the machine can do."""
    for variant in variants:
        if out.roof is not None and variant.peer.name == OURS and variant.path == "session":
            speeds = [out.median(variant.name, f) for f in ("decode_1", f"prefill_{PREFILLS[-1]}")]
            engine = variant.peer.path_of(variant.format)
            out.shares[variant.name] = shares(out.roof, engine, *speeds)


def library(variants: Sequence[Variant], rounds: int, patience: Patience, out: Results) -> None:
    """Prefill and decode: every figure of every variant once a round."""
    opened: dict[Variant, Library] = {}
    for variant in variants:
        try:
            opened[variant] = variant.peer.open(variant)
        except (PeerError, ProcessError, OSError) as error:
            out.fail(variant.name, "opening", error)
    work: list[tuple[str, Callable[[Library], float]]] = []
    for tokens in PREFILLS:
        work.append((f"prefill_{tokens}", lambda x, n=tokens: statistics.median(x.prefill(n))))
    for count in DECODES:
        work.append((f"decode_{count}", lambda x, n=count: x.decode(n, CONTEXT, NEW)))
    try:
        for number in range(rounds):
            for figure, measure in work:
                for variant, one in list(opened.items()):
                    try:
                        speed, foreign = patience.measure(lambda m=measure, x=one: m(x))
                    except (PeerError, ProcessError, OSError, KeyError) as error:
                        out.fail(variant.name, figure, error)
                        if isinstance(one, WorkerLibrary) and one.worker.process.poll() is not None:
                            del opened[variant]
                        continue
                    out.add(variant.name, figure, speed, foreign)
                    note = f"{variant.name:<28} {figure:<13} {speed:9.1f} tok/s"
                    say(f"  {number + 1}/{rounds} {note}, foreign {foreign:.2f} cores")
    finally:
        for one in opened.values():
            one.close()
