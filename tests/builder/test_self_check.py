"""The self-check's steps cover every token once, and its figures mean what they say."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginewright.builder.self_check import compare_logits, fixed_prompts, make_batch, plan_steps


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=5), step_tokens=st.integers(1, 40))
def test_steps_cover_every_token_once_and_in_order(lengths: list[int], step_tokens: int) -> None:
    done = [0] * len(lengths)
    for step in plan_steps(lengths, step_tokens):
        assert sum(count for _, _, count in step) <= step_tokens
        assert len({index for index, _, _ in step}) == len(step)
        counts = [count > 1 for _, _, count in step]
        assert counts == sorted(counts, reverse=True), "context rows first"
        for index, start, count in step:
            assert start == done[index]
            done[index] += count
    assert done == lengths


def test_a_batch_holds_packed_tokens_and_blocks_of_its_own() -> None:
    prompts = [list(range(40)), list(range(100, 108))]
    batch = make_batch(prompts, [(1, 4, 2), (0, 39, 1)], block_tokens=32)
    assert batch.token_ids.tolist() == [104, 105, 39]
    assert batch.seq_starts.tolist() == [0, 2, 3]
    assert batch.past_tokens.tolist() == [4, 39]
    assert batch.block_tables.tolist() == [[2, -1], [0, 1]]
    assert batch.logit_rows.tolist() == [0, 1, 2]


def test_prompts_fit_the_engine_and_do_not_change(tmp_path: Path) -> None:
    prompts = fixed_prompts(50, 12, tmp_path)
    assert [len(prompt) for prompt in prompts] == [12, 12, 8]
    assert all(0 <= token < 50 for prompt in prompts for token in prompt)
    assert prompts == fixed_prompts(50, 12, tmp_path)


def test_equal_logits_have_no_error() -> None:
    logits = np.random.default_rng(1).standard_normal((4, 9)).astype(np.float32)
    figures = compare_logits(logits, logits, sequences=2, kl_limit=1e-6)
    assert (figures.mean_kl, figures.max_abs_error, figures.greedy_agreement) == (0.0, 0.0, 1.0)
    assert figures.passed
    assert figures.positions == 4


def test_the_divergence_is_that_of_the_two_distributions() -> None:
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.2, 0.7])
    figures = compare_logits(
        np.log(p)[None].astype(np.float32),
        (np.log(q) + 5)[None].astype(np.float32),  # a constant shift changes no probability
        sequences=1,
        kl_limit=0.5,
    )
    assert figures.mean_kl == pytest.approx(float(np.sum(p * np.log(p / q))), rel=1e-5)
    assert figures.greedy_agreement == 0.0
    assert not figures.passed
