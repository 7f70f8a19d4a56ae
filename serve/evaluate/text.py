"""Perplexity of a text, and the KL divergence of one engine from another over it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...runtime.errors import InputError
from ...runtime.session import Float32Array
from .logits import LogitsSource, log_softmax

Progress = Callable[[int], None]  # told the number of tokens done


def windows(ids: Sequence[int], context: int, most: int | None) -> list[list[int]]:
    """Cut a text into windows that know nothing of each other; a last one of one token is left out.

    `most` bounds the number of tokens that are used. Raises InputError if nothing is left.
    """
    used = ids if most is None else ids[:most]
    cut = [list(used[start : start + context]) for start in range(0, len(used), context)]
    cut = [window for window in cut if len(window) > 1]
    if not cut:
        raise InputError(f"the text has {len(ids)} tokens; at least 2 are needed")
    return cut


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log-likelihood of every token but each window's first."""

    tokens: int
    mean_nll: float
    standard_error: float  # of mean_nll

    @property
    def perplexity(self) -> float:
        """The perplexity."""
        return math.exp(self.mean_nll)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON's types."""
        return {
            "tokens": self.tokens,
            "mean_nll": self.mean_nll,
            "perplexity": self.perplexity,
            "perplexity_error": self.perplexity * self.standard_error,
        }


def perplexity(
    source: LogitsSource, cut: Sequence[Sequence[int]], progress: Progress
) -> Perplexity:
    """Return the perplexity of a text that is cut into windows."""
    losses: list[float] = []
    for window in cut:
        place = 0
        for logits in source.logits(window):
            losses += _losses(log_softmax(logits), window, place)
            place += len(logits)
        progress(len(window))
    return _perplexity(losses)


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far an engine is from a reference, over the next-token distributions of a text."""

    positions: int
    mean_kl: float  # nats, of the engine from the reference
    median_kl: float
    p99_kl: float
    max_kl: float
    same_top: float  # share of positions whose likeliest token is the same
    engine: Perplexity
    reference: Perplexity

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON's types."""
        names = ("positions", "mean_kl", "median_kl", "p99_kl", "max_kl", "same_top")
        figures: dict[str, Any] = {name: getattr(self, name) for name in names}
        return figures | {
            "perplexity": self.engine.perplexity,
            "reference_perplexity": self.reference.perplexity,
        }


def divergence(
    engine: LogitsSource,
    reference: LogitsSource,
    cut: Sequence[Sequence[int]],
    progress: Progress,
) -> Divergence:
    """Compare two sources over a text that is cut into windows."""
    kl: list[float] = []
    same = 0
    losses: tuple[list[float], list[float]] = ([], [])
    for window in cut:
        place = 0
        for left, right in _aligned(reference.logits(window), engine.logits(window)):
            log_p, log_q = log_softmax(left), log_softmax(right)
            terms = np.exp(log_p.astype(np.float64)) * (log_p.astype(np.float64) - log_q)
            kl += np.maximum(terms.sum(axis=1), 0.0).tolist()
            same += int((left.argmax(axis=1) == right.argmax(axis=1)).sum())
            losses[0].extend(_losses(log_q, window, place))
            losses[1].extend(_losses(log_p, window, place))
            place += len(left)
        progress(len(window))
    values = np.array(kl)
    return Divergence(
        positions=len(kl),
        mean_kl=float(values.mean()),
        median_kl=float(np.median(values)),
        p99_kl=float(np.percentile(values, 99)),
        max_kl=float(values.max()),
        same_top=same / len(kl),
        engine=_perplexity(losses[0]),
        reference=_perplexity(losses[1]),
    )


def _aligned(
    first: Iterator[Float32Array], second: Iterator[Float32Array]
) -> Iterator[tuple[Float32Array, Float32Array]]:
    """Yield rows of two iterators that come in pieces of different sizes, equal rows together."""
    left, right = next(first, None), next(second, None)
    while left is not None and right is not None:
        rows = min(len(left), len(right))
        yield left[:rows], right[:rows]
        left = left[rows:] if len(left) > rows else next(first, None)
        right = right[rows:] if len(right) > rows else next(second, None)


def _losses(log_probabilities: Float32Array, window: Sequence[int], place: int) -> list[float]:
    """Return the loss of the token after each row; `place` is the first row's token."""
    following = window[place + 1 : place + 1 + len(log_probabilities)]
    rows = np.arange(len(following))
    return (-log_probabilities[rows, np.asarray(following, np.int64)]).tolist()


def _perplexity(losses: Sequence[float]) -> Perplexity:
    values = np.array(losses, np.float64)
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    return Perplexity(len(values), float(values.mean()), error)
