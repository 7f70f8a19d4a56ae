"""Sampling on the host, in numpy: the `sample` kernel of runtime.cuda_contract for a stand-in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ....runtime.session import Float32Array, Int32Array, Sampling

Float64 = npt.NDArray[np.float64]
_LOW = 0xFFFFFFFF


def sample_rows(
    sampling: Sampling, logits: Float32Array, top: int
) -> tuple[Int32Array, Float32Array, Int32Array, Float32Array]:
    """Return tokens [rows], logprobs [rows], and ids and logprobs of the likeliest [rows, top]."""
    rows = len(logits)
    tokens = np.full(rows, -1, np.int32)
    logprobs = np.full(rows, np.nan, np.float32)
    ids = np.full((rows, top), -1, np.int32)
    values = np.full((rows, top), np.nan, np.float32)
    for row in range(rows):
        token = tokens[row] = _choose(sampling, row, logits[row])
        wanted = int(sampling.num_logprobs[row])
        if wanted < 0 or token < 0:
            continue
        shares = _log_softmax(logits[row])
        logprobs[row] = shares[token]
        likeliest = _likeliest_first(logits[row], min(wanted, top))
        ids[row, : len(likeliest)] = likeliest
        values[row, : len(likeliest)] = shares[likeliest]
    return tokens, logprobs, ids, values


def philox_uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) of a seed and a position (Philox4x32-10, Salmon et al. 2011)."""
    c0, c1, c2, c3 = position & _LOW, position >> 32, 0, 0
    k0, k1 = seed & _LOW, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _LOW, (a >> 32) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return ((c0 << 21) ^ (c1 >> 11)) / (1 << 53)


def _choose(s: Sampling, row: int, logits: Float32Array) -> int:
    x = _adjusted(s, row, logits)
    best = int(x.argmax())  # the lowest id among equals
    if not np.isfinite(x[best]):
        return -1
    temperature = float(s.temperature[row])
    if temperature <= 0:
        return best
    top_k, top_p, min_p = int(s.top_k[row]), float(s.top_p[row]), float(s.min_p[row])
    if top_k > 0 or top_p < 1 or min_p > 0:
        order = _likeliest_first(x, top_k if top_k > 0 else len(x))
    else:  # without filters the draw goes by id
        order = np.arange(len(x))
    weights = np.exp((x[order] - x[best]) / max(temperature, 1e-37))
    if top_p < 1:
        before = np.cumsum(weights) - weights
        kept = max(1, int((before < top_p * weights.sum()).sum()))
        order, weights = order[:kept], weights[:kept]
    if min_p > 0:
        kept = max(1, int((weights >= min_p).sum()))
        order, weights = order[:kept], weights[:kept]
    draw = philox_uniform(int(s.seeds[row]), int(s.positions[row])) * weights.sum()
    at = int(np.searchsorted(np.cumsum(weights), draw, side="right"))
    return int(order[min(at, int(np.flatnonzero(weights)[-1]))])


def _adjusted(s: Sampling, row: int, logits: Float32Array) -> Float64:
    """Return the logits after penalties (arXiv:1909.05858 and OpenAI's), bias and mask.

    What is no number can only be the last choice.
    """
    x = logits.astype(np.float64)
    history = s.history[s.history_starts[row] : s.history_starts[row + 1]]
    answer = history[s.prompt_lengths[row] :]
    seen = np.unique(history)
    penalty = float(s.repetition_penalty[row])
    x[seen] = np.where(x[seen] > 0, x[seen] / penalty, x[seen] * penalty)
    said, times = np.unique(answer, return_counts=True)
    x[said] -= float(s.presence_penalty[row]) + float(s.frequency_penalty[row]) * times
    biases = slice(s.bias_starts[row], s.bias_starts[row + 1])
    np.add.at(x, s.bias_ids[biases], s.bias_values[biases])
    if s.masks is not None:
        allowed = np.unpackbits(s.masks[row].view(np.uint8), bitorder="little")[: len(x)]
        x[allowed == 0] = -np.inf
    x[np.isnan(x)] = -np.inf
    return x


def _likeliest_first(x: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.int64]:
    """Return the ids of the `count` largest numbers, largest first, the lowest id among equals."""
    falling = -np.where(np.isnan(x), -np.inf, x)
    ids = np.arange(len(x))
    if count < len(x):  # sorting a whole vocabulary takes longer than a step of a small model
        ids = np.flatnonzero(falling <= np.partition(falling, count)[count])
    return ids[np.argsort(falling[ids], kind="stable")][:count]


def _log_softmax(logits: Float32Array) -> Float64:
    x = logits.astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())
