"""The sampling stage in plain numpy, in double precision: what plugins/cpu/sample.h must give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from enginewright.runtime.session import Sampling

Float64 = npt.NDArray[np.float64]


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 (Salmon et al. 2011): four 32-bit words of a counter and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that draws the token at a position: 53 bits of the first two words."""
    low = 0xFFFFFFFF
    words = philox((position & low, position >> 32, 0, 0), (seed & low, seed >> 32))
    return ((words[0] << 21) ^ (words[1] >> 11)) / (1 << 53)


@dataclass(frozen=True)
class Choice:
    """One row's candidates, likeliest first, and where the draw fell among them."""

    ids: npt.NDArray[np.int64]
    shares: Float64  # of the candidates' mass, summing to 1
    uniform: float

    def accepts(self, token: int, slack: float = 3e-6) -> bool:
        """Whether the draw, moved by at most `slack`, falls on this token."""
        ends = np.cumsum(self.shares)
        where = np.flatnonzero(self.ids == token)
        if not len(where):
            return False
        begin, end = ends[where[0]] - self.shares[where[0]], ends[where[0]]
        return bool(begin - slack <= self.uniform <= end + slack)


def adjusted(sampling: Sampling, row: int, logits: npt.NDArray[np.float32]) -> Float64:
    """Logits after penalties, bias and mask."""
    x = logits.astype(np.float64)
    s = sampling
    history = s.history[s.history_starts[row] : s.history_starts[row + 1]]
    answer = history[s.prompt_lengths[row] :]
    for token in set(history.tolist()):
        penalty = float(s.repetition_penalty[row])
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        times = int((answer == token).sum())
        if times:
            x[token] -= float(s.presence_penalty[row]) + float(s.frequency_penalty[row]) * times
    for i in range(s.bias_starts[row], s.bias_starts[row + 1]):
        x[s.bias_ids[i]] += float(s.bias_values[i])
    if s.masks is not None:
        bits = np.unpackbits(s.masks[row].view(np.uint8), bitorder="little")[: len(x)]
        x[bits == 0] = -np.inf
    return x


def choose(sampling: Sampling, row: int, logits: npt.NDArray[np.float32]) -> Choice:
    """The candidates of a row: temperature, top-k, top-p, min-p, in that order."""
    x = adjusted(sampling, row, logits)
    ids = np.lexsort((np.arange(len(x)), -x))
    s = sampling
    temperature = float(s.temperature[row])
    if temperature == 0:
        return Choice(ids[:1], np.ones(1), 0.5)
    top_k, top_p, min_p = int(s.top_k[row]), float(s.top_p[row]), float(s.min_p[row])
    weights = np.exp((x[ids] - x[ids[0]]) / temperature)
    ids = ids[weights > 0]
    weights = weights[weights > 0]
    if top_k > 0:
        ids, weights = ids[:top_k], weights[:top_k]
    if top_p < 1:
        before = np.cumsum(weights) - weights
        keep = before < top_p * weights.sum()
        keep[0] = True
        ids, weights = ids[keep], weights[keep]
    keep = weights >= min_p
    ids, weights = ids[keep], weights[keep]
    if top_k <= 0 and top_p >= 1 and min_p <= 0:
        order = np.argsort(ids)  # without filters the draw goes by id
        ids, weights = ids[order], weights[order]
    return Choice(ids, weights / weights.sum(), uniform(int(s.seeds[row]), int(s.positions[row])))


def log_softmax(logits: npt.NDArray[np.float32]) -> Float64:
    """Log-probabilities of rows of logits."""
    x = logits.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))
