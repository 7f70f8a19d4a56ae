"""Quality: the mean KL divergence from f32 of every peer and format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .peer.base import PeerError, Variant
from .peer.models import CACHE, Model
from .peer.process import ProcessError
from .results import Results, say

TEXT = Path(__file__).resolve().parents[1] / "e2e/texts/kl_text.txt"


def quality(variants: Sequence[Variant], model: Model, out: Results) -> None:
    """Mean KL to f32 of every peer and format, over the tokens of kl_text.txt."""
    ids = model.tokenizer.encode(TEXT.read_text())
    say(f"peers: f32 reference of {len(ids)} tokens")
    reference = _log_softmax(model.reference(ids))
    folder = CACHE / "peers" / "logits"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (peer, fmt) in {
        f"{v.peer.name} {v.format}": (v.peer, v.format) for v in variants
    }.items():
        try:
            found = peer.logits(fmt, ids, folder / f"{name.replace(' ', '-')}.npy")
            out.quality[name] = divergence(reference, found)
            found.unlink()
        except (PeerError, ProcessError, OSError, ValueError, StopIteration) as error:
            out.fail(name, "quality", error)
            continue
        say(f"  {name}: mean KL {out.quality[name]['mean_kl']:.5f}")


def divergence(reference: np.ndarray, path: Path) -> dict[str, float]:
    """KL(f32 || peer) of [tokens, vocab] log-probabilities to a peer's file.

    A file of the likeliest tokens (.npz) counts all others as one, which understates a little.
    """
    if path.suffix == ".npz":
        with np.load(path) as file:
            ids, q = file["ids"], file["logprobs"].astype(np.float64)
        p = np.take_along_axis(reference, ids, 1)
        rest_p = np.log(np.maximum(1 - np.exp(p).sum(1), 1e-12))
        rest_q = np.log(np.maximum(1 - np.exp(q).sum(1), 1e-12))
        kl = (np.exp(p) * (p - q)).sum(1) + np.exp(rest_p) * (rest_p - rest_q)
        best = ids[np.arange(len(ids)), q.argmax(1)]
    else:
        q = _log_softmax(np.load(path))
        kl = (np.exp(reference) * (reference - q)).sum(1)
        best = q.argmax(1)
    if len(kl) != len(reference):
        raise ValueError(f"{len(kl)} rows of logits were found, expected {len(reference)}")
    return {
        "mean_kl": float(kl.mean()),
        "median_kl": float(np.median(kl)),
        "p99_kl": float(np.quantile(kl, 0.99)),
        "argmax_agreement": float((best == reference.argmax(1)).mean()),
    }


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x
