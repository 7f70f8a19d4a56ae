"""Sampling on the CPU where it is hard: ties, rows that are not finite, extreme parameters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.cpu_kernels import Kernels
from tests.support.generate import make_sampling
from tests.support.sampling_twin import choose


def make_logits(rows: int, vocab: int) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng(vocab)
    return (3 * generator.standard_normal((rows, vocab))).astype(np.float32)


def test_the_lowest_id_wins_a_greedy_tie(kernels: Kernels) -> None:
    logits = np.full((3, 61), -2, np.float32)
    logits[0, [50, 13, 14]] = 4
    logits[1] = 0
    logits[2, [0, 60]] = 1
    tokens, *_ = kernels.sample(make_sampling(3), logits)
    assert tokens.tolist() == [13, 0, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str)
def test_a_row_without_a_finite_maximum_gives_minus_one(
    kernels: Kernels, temperature: float, filters: dict[str, float]
) -> None:
    logits = make_logits(5, 61)
    logits[0] = np.nan
    logits[1] = -np.inf
    logits[2, 40] = np.inf
    masks = np.full((5, 2), 0xFFFFFFFF, np.uint32)
    masks[3] = 0
    sampling = make_sampling(5, temperature=temperature, num_logprobs=2, masks=masks, **filters)
    tokens, logprobs, ids, _ = kernels.sample(sampling, logits)
    assert tokens[:4].tolist() == [-1] * 4
    assert np.isnan(logprobs[:4]).all()
    assert (ids[:4] == -1).all()
    assert tokens[4] >= 0
    assert np.isfinite(logprobs[4])


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-38, 1e-44])
def test_a_very_low_temperature_is_greedy(kernels: Kernels, temperature: float) -> None:
    logits = make_logits(4, 253)
    tokens, *_ = kernels.sample(make_sampling(4, temperature=temperature, seeds=range(4)), logits)
    assert tokens.tolist() == logits.argmax(axis=1).tolist()


def test_very_high_temperatures_and_distant_logits(kernels: Kernels) -> None:
    logits = np.array([[0, -500, -np.inf, -600]] * 40, np.float32)
    hot = make_sampling(40, temperature=1e30, seeds=range(40))
    tokens, *_ = kernels.sample(hot, logits)
    assert set(tokens.tolist()) == {0, 1, 3}
    cold = make_sampling(40, temperature=1, top_p=0.999999, seeds=range(40))
    assert set(kernels.sample(cold, logits)[0].tolist()) == {0}


def test_bias_may_forbid_and_force(kernels: Kernels) -> None:
    logits = make_logits(2, 61)
    best = logits.argmax(axis=1)
    sampling = make_sampling(
        2,
        bias_starts=np.array([0, 1, 2], np.int32),
        bias_ids=np.array([best[0], 7], np.int32),
        bias_values=np.array([-np.inf, 1e6], np.float32),
    )
    tokens, *_ = kernels.sample(sampling, logits)
    second = np.argsort(-logits[0])[1]
    assert tokens.tolist() == [second, 7]


def test_top_p_is_a_share_of_what_top_k_left(kernels: Kernels) -> None:
    """Filters apply one after the other: min-p comes too late to shrink what top-p measures."""
    logits = np.log(np.array([[1, 0.06, *[0.01] * 1000]] * 200)).astype(np.float32)
    sampling = make_sampling(200, temperature=1, top_k=900, top_p=0.5, min_p=0.05, seeds=range(200))
    tokens, *_ = kernels.sample(sampling, logits)
    assert set(tokens.tolist()) == {0, 1}
    for row in range(200):
        assert choose(sampling, row, logits[row]).accepts(int(tokens[row])), row
