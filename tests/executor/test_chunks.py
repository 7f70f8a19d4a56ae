import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginewright.executor.chunks import (
    ChunkBudget,
    equal_progress,
    first_come_first_served,
)
from enginewright.executor.sampling import TokenParams
from tests.executor.harness import Harness, make_limits


@pytest.mark.parametrize("share", [first_come_first_served, equal_progress])
@given(missing=st.lists(st.integers(0, 100), max_size=8), budget=st.integers(0, 300))
def test_chunks_use_the_whole_budget_and_no_more(
    share: type, missing: list[int], budget: int
) -> None:
    chunks = share(missing, budget, 32)
    assert all(0 <= chunk <= most for chunk, most in zip(chunks, missing, strict=True))
    assert sum(chunks) == min(budget, sum(missing))


def test_the_first_prompt_gets_all_or_each_gets_a_unit_in_turn() -> None:
    assert first_come_first_served([100, 100, 5], 128, 32) == [100, 28, 0]
    assert equal_progress([100, 100, 5], 128, 32) == [64, 59, 5]
    assert equal_progress([10, 10, 10], 16, 32) == [10, 6, 0]


def simulate(budget: ChunkBudget, base: float, cost: float, steps: int) -> list[int]:
    """Steps of a device with those costs, as many prompt tokens as the budget allows."""
    taken: list[int] = []
    for _ in range(steps):
        taken.append(budget.tokens(8))
        budget.measured(taken[-1], 8, base + cost * taken[-1])
    return taken


def test_the_budget_approaches_what_the_target_leaves_room_for() -> None:
    budget = ChunkBudget(50.0, 32, 2048)
    budget.measured(0, 8, 0.010)
    taken = simulate(budget, 0.010, 0.0001, 40)
    assert taken[0] == 32
    assert all(after <= 2 * before for before, after in itertools.pairwise(taken))
    assert 360 <= taken[-1] <= 440
    assert all(0.010 + 0.0001 * tokens < 0.055 for tokens in taken)
    slower = simulate(budget, 0.010, 0.001, 40)
    assert 36 <= slower[-1] <= 44


def test_prompts_go_on_when_the_target_cannot_be_met() -> None:
    budget = ChunkBudget(1.0, 32, 2048)
    budget.measured(0, 8, 0.010)
    assert simulate(budget, 0.010, 0.001, 20)[-1] == 32


def test_without_answers_or_without_a_target_prompts_get_everything() -> None:
    assert ChunkBudget(1.0, 32, 2048).tokens(0) == 2048
    assert ChunkBudget(None, 32, 2048).tokens(8) == 2048


def test_equal_progress_reads_prompts_side_by_side() -> None:
    limits = make_limits(max_num_tokens=16, block_tokens=4, num_blocks=64)
    harness = Harness(limits, chunk_policy="equal_progress")
    harness.submit("a", [1] * 40, TokenParams(max_tokens=2))
    harness.step()
    harness.submit("b", [2] * 8, TokenParams(max_tokens=2))
    while not harness.outputs["b"]:
        harness.step()
        assert len(harness.session.batches) < 10
    assert len(harness.session.batches[-1].past_tokens) >= 1
    harness.run()
