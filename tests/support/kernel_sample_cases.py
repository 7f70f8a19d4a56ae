"""The kernel `sample` against its twin in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from enginewright.plugins.cuda.variants import Variant, sample_variant
from enginewright.runtime.session import Sampling

from .generate import make_sampling
from .sampling_twin import choose, log_softmax, uniform

Array = npt.NDArray[Any]


class Launch(Protocol):
    """Runs a variant on numpy's memory; arguments are those that a launch passes, in order."""

    def __call__(
        self, variant: Variant, grid: tuple[int, ...], *arguments: Any, **changes: Any
    ) -> None:
        """`changes` replace constants."""
        ...


def run_sample(
    launch: Launch, logits: Array, sampling: Sampling, top: int = 0, block: int = 64
) -> tuple[Array, ...]:
    rows, vocab = logits.shape
    s = sampling
    tokens, logprobs = np.full(rows, -7, np.int32), np.zeros(rows, np.float32)
    ids, values = np.zeros((rows, max(top, 1)), np.int32), np.zeros((rows, max(top, 1)), np.float32)
    masks = np.zeros((1, 1), np.uint32) if s.masks is None else s.masks
    words = 0 if s.masks is None else masks.shape[1]
    spare = [x if len(x) else np.zeros(1, x.dtype) for x in (s.history, s.bias_ids, s.bias_values)]
    arguments = (
        *(np.ascontiguousarray(logits), tokens, logprobs, ids, values),
        np.full(rows * 2 * vocab, np.nan, np.float32),
        *(s.temperature, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty),
        *(s.frequency_penalty, s.top_k, s.positions, s.num_logprobs, s.history_starts, spare[0]),
        *(s.prompt_lengths, s.bias_starts, spare[1], spare[2], s.seeds, masks),
        *(vocab, words, top),
    )
    launch(sample_variant(), (rows,), *arguments, BLOCK=block)
    return tokens, logprobs, ids, values


def judge(launch: Launch, logits: Array, sampling: Sampling, top: int = 0) -> dict[str, Any]:
    """How many rows got a token that the double-precision twin would not give."""
    tokens, logprobs, ids, values = run_sample(launch, logits, sampling, top)
    refused = sum(
        not choose(sampling, row, logits[row]).accepts(int(token))
        for row, token in enumerate(tokens)
    )
    shares = log_softmax(logits)
    error, wrong = 0.0, 0
    for row, wanted in enumerate(sampling.num_logprobs):
        if wanted < 0:
            wrong += not np.isnan(logprobs[row])
            continue
        error = max(error, abs(float(logprobs[row]) - shares[row, tokens[row]]))
        likeliest = np.argsort(-logits[row], kind="stable")[: int(wanted)]
        wrong += int((ids[row, : len(likeliest)] != likeliest).sum())
        if wanted:
            gap = np.abs(values[row, : len(likeliest)] - shares[row, likeliest]).max()
            error = max(error, float(gap))
    return {"refused": refused, "rows": len(tokens), "error": error, "wrong": wrong}


def sample_cases(launch: Launch) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    rows, vocab = 6, 150
    generator = np.random.default_rng(4)
    logits = (2 * generator.standard_normal((rows, vocab))).astype(np.float32)
    tied = np.round(logits)
    random = {
        "temperature": 0.8,
        "seeds": generator.integers(0, 2**63, rows).astype(np.uint64) * np.uint64(2),
        "positions": generator.integers(0, 2**31 - 1, rows),
    }
    masks = generator.integers(0, 2**32, (rows, 5), dtype=np.uint64).astype(np.uint32)
    history = generator.integers(0, vocab, 20 * rows).astype(np.int32)
    options: dict[str, dict[str, Any]] = {
        "greedy": {"num_logprobs": np.array([-1, 0, 1, 3, 5, 5])},
        "plain": random | {"num_logprobs": 2},
        "top-k": random | {"top_k": np.array([1, 2, 5, 20, 149, 500])},
        "top-p": random | {"top_p": np.array([0.0, 0.1, 0.5, 0.9, 0.99, 0.3])},
        "min-p": random | {"min_p": np.array([1.0, 0.5, 0.2, 0.1, 0.01, 0.001])},
        "filters": random | {"top_k": 40, "top_p": 0.8, "min_p": 0.03},
        "penalties": random
        | {
            "history_starts": np.arange(rows + 1, dtype=np.int32) * 20,
            "history": history,
            "prompt_lengths": np.array([0, 5, 10, 15, 20, 7]),
            "repetition_penalty": 1.3,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.25,
        },
        "bias": {
            "bias_starts": np.array([0, 0, 1, 2, 3, 5, 6], np.int32),
            "bias_ids": np.array([3, 7, 140, 9, 9, 149], np.int32),
            "bias_values": np.array([50, -50, 90, 30, 30, 60], np.float32),
        },
        "mask": random | {"masks": masks},
    }
    for name, fields in options.items():
        s = make_sampling(rows, **fields)
        yield f"sample-{name}", lambda s=s: judge(launch, logits, s, 5)
        if name in ("top-k", "top-p", "min-p", "filters"):
            yield f"sample-{name}-ties", lambda s=s: judge(launch, tied, s)

    def broken() -> dict[str, Any]:
        x = logits.copy()
        x[0], x[1], x[2, 4], x[3, :] = np.nan, -np.inf, np.inf, -1
        x[4, 3] = np.nan
        s = make_sampling(rows, num_logprobs=1)
        tokens, _, _, _ = run_sample(launch, x, s, 1)
        best = [int(np.nanargmax(x[4])), int(x[5].argmax())]
        return {"wrong": int((tokens != np.array([-1, -1, -1, 0, *best])).sum())}

    yield "sample-broken-logits", broken


def run_philox(launch: Launch) -> dict[str, Any]:
    """Draws over 2^12 equal tokens show the first 12 bits of the uniform number."""
    wrong, size = 0, 1 << 12
    seeds = np.array([0, 1, 0xFFFFFFFF, 1 << 32, (1 << 64) - 1, 0x123456789ABCDEF], np.uint64)
    for position in (0, 77, 2**31 - 1):
        s = make_sampling(len(seeds), temperature=1, seeds=seeds, positions=position)
        tokens, *_ = run_sample(launch, np.zeros((len(seeds), size), np.float32), s, block=size)
        expected = [int(uniform(int(seed), position) * size) for seed in seeds]
        wrong += int((tokens != np.array(expected)).sum())
    return {"wrong": wrong}
