"""Sampling on the CPU against its numpy twin, at every instruction set that this machine runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.cpu_kernels import Kernels
from tests.support.generate import make_sampling
from tests.support.sampling_twin import choose, log_softmax, philox, uniform

few_examples = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
VOCABS = (1, 7, 16, 61, 253, 1000)


def make_logits(rows: int, vocab: int, seed: int = 0, scale: float = 3) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng([seed, vocab])
    return (scale * generator.standard_normal((rows, vocab))).astype(np.float32)


def test_philox_gives_the_published_vectors() -> None:
    """The known answers of philox4x32 with 10 rounds in Random123's kat_vectors."""
    ones = 0xFFFFFFFF
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones, ones, ones, ones), (ones, ones)) == (
        0x408F276D,
        0x41C83B0E,
        0xA20BC7C6,
        0x6D5451FD,
    )
    counter = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    expected = (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    assert philox(counter, (0xA4093822, 0x299F31D0)) == expected


def test_the_generator_is_philox(kernels: Kernels) -> None:
    for seed in (0, 1, 0xFFFFFFFF, 1 << 32, (1 << 64) - 1, 0x123456789ABCDEF):
        for position in (0, 1, 77, 2**31 - 1):
            assert kernels.library.test_philox(seed, position) == uniform(seed, position)


def test_the_logarithm(kernels: Kernels) -> None:
    values = [1.0, 1.4142135, 1.4142136, 2.0, 3.7, 1e3, 128256.0, 2.0**39]
    found = [kernels.library.test_log(value) for value in values]
    np.testing.assert_allclose(found, np.log(values), rtol=1e-14, atol=1e-15)


@few_examples
@given(
    vocab=st.sampled_from(VOCABS),
    seed=st.integers(0, 2**63),
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 5000]),
    top_p=st.sampled_from([0.01, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
def test_filters_and_draw(
    kernels: Kernels,
    vocab: int,
    seed: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> None:
    rows = 6
    logits = make_logits(rows, vocab, seed % 1000)
    sampling = make_sampling(
        rows,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seeds=[seed + i for i in range(rows)],
        positions=range(rows),
    )
    tokens, logprobs, *_ = kernels.sample(sampling, logits)
    for row in range(rows):
        assert choose(sampling, row, logits[row]).accepts(int(tokens[row])), row
    assert np.isnan(logprobs).all()


@few_examples
@given(
    seed=st.integers(0, 1000),
    repetition=st.sampled_from([1.0, 1.3, 0.7]),
    presence=st.sampled_from([0.0, 1.5, -1.0]),
    frequency=st.sampled_from([0.0, 0.4, -0.3]),
    temperature=st.sampled_from([0.0, 1.0]),
    masked=st.booleans(),
)
def test_penalties_bias_and_masks(
    kernels: Kernels,
    seed: int,
    repetition: float,
    presence: float,
    frequency: float,
    temperature: float,
    masked: bool,
) -> None:
    rows, vocab = 5, 61
    generator = np.random.default_rng(seed)
    lengths, biases = generator.integers(0, 40, rows), generator.integers(0, 9, rows)
    lengths[0] = biases[1] = 0
    words = generator.integers(0, 2**32, (rows, 2), np.uint32)
    words[:, 0] |= 1  # at least one token is left
    sampling = make_sampling(
        rows,
        temperature=temperature,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        seeds=seed,
        positions=range(rows),
        history_starts=np.cumsum([0, *lengths]).astype(np.int32),
        history=generator.integers(0, 12, lengths.sum()).astype(np.int32),
        prompt_lengths=lengths // 2,
        bias_starts=np.cumsum([0, *biases]).astype(np.int32),
        bias_ids=np.concatenate([generator.permutation(vocab)[:n] for n in biases]).astype(
            np.int32
        ),
        bias_values=(4 * generator.standard_normal(biases.sum())).astype(np.float32),
        masks=words if masked else None,
    )
    logits = make_logits(rows, vocab, seed)
    tokens, *_ = kernels.sample(sampling, logits)
    for row in range(rows):
        assert choose(sampling, row, logits[row]).accepts(int(tokens[row])), row


@pytest.mark.parametrize("vocab", [1, 16, 61, 1000])
def test_logprobs_are_of_the_model_itself(kernels: Kernels, vocab: int) -> None:
    """Neither temperature nor penalties nor masks show in them; ties go by id."""
    rows, count = 5, min(20, vocab)
    logits = make_logits(rows, vocab)
    logits[:, vocab // 2 :] = logits[:, : vocab - vocab // 2]  # every value is there twice
    logits[4] = 1.5
    masks = np.full((rows, -(-vocab // 32)), 0xFFFFFFFF, np.uint32)
    sampling = make_sampling(
        rows,
        temperature=[0, 1, 0.3, 2, 1],
        seeds=range(rows),
        num_logprobs=[count, 0, count // 2, -1, count],
        repetition_penalty=1.7,
        history_starts=np.arange(rows + 1, dtype=np.int32),
        history=np.zeros(rows, np.int32),
        masks=masks,
    )
    tokens, logprobs, ids, top = kernels.sample(sampling, logits)
    expected = log_softmax(logits)
    for row, wanted in enumerate(sampling.num_logprobs.tolist()):
        if wanted < 0:
            assert np.isnan(logprobs[row])
        else:
            np.testing.assert_allclose(logprobs[row], expected[row, tokens[row]], atol=2e-6)
        wanted = max(0, wanted)
        order = np.lexsort((np.arange(vocab), -logits[row]))[:wanted]
        assert ids[row].tolist() == [*order.tolist(), *[-1] * (count - wanted)]
        np.testing.assert_allclose(top[row, :wanted], expected[row, order], atol=2e-6)
        assert np.isnan(top[row, wanted:]).all()


def test_logprobs_of_far_apart_logits(kernels: Kernels) -> None:
    logits = np.array([[0, -40, -200, -np.inf], [1000, 999, -1000, 998]], np.float32)
    *_, ids, top = kernels.sample(make_sampling(2, num_logprobs=4), logits)
    assert ids.tolist() == [[0, 1, 2, 3], [0, 1, 3, 2]]
    expected = log_softmax(logits)
    np.testing.assert_allclose(top, np.take_along_axis(expected, ids.astype(int), 1), atol=1e-4)


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.4, "top_k": 6, "top_p": 0.9, "min_p": 0.01},
    ],
    ids=str,
)
def test_draws_follow_their_probabilities(kernels: Kernels, filters: dict[str, Any]) -> None:
    """Chi-square over 20,000 draws of one distribution; seeds are fixed, so it cannot flicker."""
    draws, vocab = 20_000, 24
    row = make_logits(1, vocab, seed=4, scale=1.5)
    half = draws // 2
    seeds = np.concatenate([np.arange(half), np.full(half, 9)])  # by seed, and by position
    positions = np.concatenate([np.full(half, 5), np.arange(half)])
    sampling = make_sampling(
        draws, **{"temperature": 1.0, **filters}, seeds=seeds, positions=positions
    )
    tokens, *_ = kernels.sample(sampling, np.repeat(row, draws, axis=0))
    choice = choose(sampling, 0, row[0])
    for part in (tokens[:half], tokens[half:]):
        counts = np.bincount(part, minlength=vocab)
        assert counts.sum() == counts[choice.ids].sum()
        expected = choice.shares * half
        large = expected >= 5
        chi = (((counts[choice.ids] - expected) ** 2) / expected)[large].sum()
        degrees = max(1, large.sum() - 1)
        assert chi < degrees + 4 * np.sqrt(2 * degrees)


def test_a_row_is_sampled_alike_in_any_company(kernels: Kernels) -> None:
    rows, vocab = 12, 253
    logits = make_logits(rows, vocab)
    fields = {
        "temperature": np.linspace(0, 2, rows),
        "top_p": np.linspace(0.3, 1, rows),
        "seeds": np.arange(rows) + 3,
        "positions": np.arange(rows) * 5,
        "num_logprobs": np.full(rows, 4),
    }
    everything = kernels.sample(make_sampling(rows, **fields), logits)
    order = np.random.default_rng(1).permutation(rows)
    shuffled = kernels.sample(
        make_sampling(rows, **{k: v[order] for k, v in fields.items()}), logits[order]
    )
    for found, expected in zip(shuffled, everything, strict=True):
        assert found.tobytes() == expected[order].tobytes()
    for i in range(rows):
        own = {k: v[i : i + 1] for k, v in fields.items()}
        for found, expected in zip(
            kernels.sample(make_sampling(1, **own), logits[i : i + 1]), everything, strict=True
        ):
            assert found.tobytes() == expected[i : i + 1].tobytes()
