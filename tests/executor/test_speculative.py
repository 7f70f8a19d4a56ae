import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginewright.executor.draft_engine import DraftEngine
from enginewright.executor.ngram_drafter import NgramDrafter
from enginewright.executor.plan import StepOutput, StepPlan
from enginewright.executor.request import Request, RequestLimits
from enginewright.executor.sampling import TokenParams
from enginewright.executor.speculative import Governor, Speculator, accepted
from enginewright.runtime.errors import InputError
from tests.executor.harness import make_limits
from tests.support.fake_session import FakeSession, next_token

LIMITS = RequestLimits(200, 1000, 101)


def request(tokens: list[int], number: int = 0, params: TokenParams | None = None) -> Request:
    params = params or TokenParams(max_tokens=50)
    return Request(number, str(number), tokens, params, LIMITS, 0.0)


def guess(drafter: NgramDrafter, one: Request, most: int = 3) -> list[int]:
    return drafter.propose({one.number: (one, most)}).get(one.number, [])


def test_prompt_lookup_continues_the_latest_run_of_the_same_tokens() -> None:
    drafter = NgramDrafter()
    one = request([1, 2, 3, 4, 9, 1, 2, 7, 7, 8, 1, 2])
    assert guess(drafter, one) == [7, 7, 8]
    one.tokens += [3]
    assert guess(drafter, one) == [4, 9, 1]
    one.tokens += [50]
    assert guess(drafter, one) == []
    assert guess(drafter, request([5, 6, 5, 6, 5, 6], 1), 5) == [5, 6, 5, 6, 5]
    drafter.keep({1})
    assert guess(drafter, request([8, 8, 1], 0)) == []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 6))
def test_prompt_lookup_grows_as_if_made_anew(tokens: list[int], most: int) -> None:
    grown, one = NgramDrafter(), request(tokens[:1])
    for token in [*tokens[1:], -1]:
        found = guess(grown, one, most)
        assert found == guess(NgramDrafter(), request(list(one.tokens)), most)
        assert len(found) in (0, most)
        one.tokens.append(token)


def test_only_right_drafts_and_the_token_after_them_count() -> None:
    assert accepted([], [4]) == 1
    assert accepted([1, 2], [1, 2, 3]) == 3
    assert accepted([1, 2], [1, 5, 3]) == 2
    assert accepted([1, 2], [7, 2, 3]) == 1


def run_governor(governor: Governor, plain: float, drafted: float, tokens: float) -> float:
    """The share of steps with drafts, of 1000 that take so long and give so many tokens."""
    random, used = np.random.default_rng(0), 0
    for _ in range(1000):
        wants = governor.wants_drafts(4)
        used += wants
        seconds = (drafted if wants else plain) * random.uniform(0.9, 1.1)
        governor.observe(4, round(4 * tokens) if wants else 4, wants, seconds)
    return used / 1000


def test_drafts_go_on_while_they_pay_and_stop_when_they_do_not() -> None:
    governor = Governor()
    assert run_governor(governor, 1.0, 1.2, 2.0) > 0.95
    assert run_governor(governor, 1.0, 1.5, 1.0) < 0.35  # notices that the text has changed
    assert run_governor(governor, 1.0, 1.5, 1.0) < 0.05
    assert run_governor(governor, 1.0, 1.2, 2.0) > 0.5
    assert governor.switches >= 2


def test_a_governor_tells_batch_sizes_apart() -> None:
    governor = Governor()
    run_governor(governor, 1.0, 1.2, 2.0)
    for _ in range(6):
        assert governor.wants_drafts(64)
        governor.observe(64, 64, True, 3.0)
    for _ in range(6):
        assert not governor.wants_drafts(64)
        governor.observe(64, 64, False, 1.0)
    assert not any(governor.wants_drafts(64) for _ in range(100))
    assert governor.wants_drafts(4)


def test_a_speculator_asks_for_no_more_than_there_is_room_for() -> None:
    speculator = Speculator(NgramDrafter(), 4)
    many = [request([5, 6] * 8, n) for n in range(3)]
    assert [len(one) for one in speculator.propose(many, 6).values()] == [4, 2]
    assert speculator.propose(many, 0) == {}
    ending = request([5, 6] * 8, 9, TokenParams(max_tokens=2))
    assert [len(one) for one in speculator.propose([ending], 8).values()] == [1]
    assert len(land(speculator, [5, 6, 5, 6], [5, 7])) == 2
    assert len(land(speculator, [5, 6], [5, 6, 5])) == 4
    figures = speculator.snapshot()
    assert (figures["num_draft_tokens"], figures["num_accepted_tokens"]) == (6, 3)
    assert figures["acceptance_length"] == 2.5


def land(speculator: Speculator, drafts: list[int], sampled: list[int]) -> list[int]:
    """The next drafts of a request whose last ones met these tokens."""
    row = [0]
    plan = StepPlan(0, row, row, row, [1 + len(drafts)], 0, row, [], [], 1 + len(drafts))
    plan.drafts[0] = drafts
    padded = sampled + [9] * (len(drafts) + 1 - len(sampled))
    speculator.landed(plan, StepOutput(padded, firsts=[0]), 1.0)
    return speculator.propose([request([5, 6] * 8)], 8)[0]


def draft_engine(**limits: int) -> DraftEngine:
    return DraftEngine(FakeSession(make_limits(**limits)), 101, "draft")


def continuation(tokens: list[int], count: int, seed: int = 0) -> list[int]:
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens, 101, seed))
    return tokens[-count:]


@pytest.mark.parametrize("params", [TokenParams(), TokenParams(temperature=1.0, seed=77)])
def test_a_draft_engine_follows_its_sequences_also_after_wrong_guesses(params: TokenParams) -> None:
    engine = draft_engine()
    seed = 77 if params.temperature else 0
    one, other = request([1, 2, 3], 0, params), request([7] * 9, 1, params)
    for step in range(4):
        found = engine.propose({0: (one, 3), 1: (other, 2)})
        assert found[0] == continuation(one.tokens, 3, seed)
        assert found[1] == continuation(other.tokens, 2, seed)
        one.tokens += found[0][: step % 4]  # some right ones
        one.tokens.append(50 + step)  # and what the target wanted instead
        other.tokens += found[1]


def test_a_draft_engine_catches_up_by_chunks_and_gives_back_what_it_holds() -> None:
    engine = draft_engine(max_num_tokens=8)
    long = request(list(range(20)))
    assert [engine.propose({0: (long, 2)}) for _ in range(2)] == [{}, {}]
    assert engine.propose({0: (long, 2)}) == {0: continuation(long.tokens, 2)}
    engine.keep({})
    assert engine.propose({0: (long, 2)}) == {}


def test_a_draft_engine_leaves_out_what_it_has_no_room_for() -> None:
    engine = draft_engine(max_batch_size=1, num_blocks=3, block_tokens=4, max_seq_len=16)
    small = request([1, 2], 0)
    assert set(engine.propose({0: (small, 2), 1: (request([1], 1), 2)})) == {0}
    engine.keep({})
    assert engine.propose({2: (request([1] * 11, 2), 3)}) == {}  # 4 blocks
    assert engine.propose({3: (request([1] * 15, 3), 3)}) == {}  # beyond its context
    with pytest.raises(InputError, match="101 tokens and the engine has 99"):
        DraftEngine(FakeSession(make_limits()), 99, "draft")


def test_accepted_tokens_have_the_distribution_of_the_sampler() -> None:
    """Drafts from another distribution; each position's draw depends on seed and position alone."""
    target, guess = np.array([0.5, 0.2, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    counts, accepted_drafts = np.zeros((2, 4)), 0
    for seed in range(4000):
        drawn = [
            int(np.searchsorted(np.cumsum(target), np.random.default_rng([seed, place]).random()))
            for place in range(3)
        ]
        drafts = np.random.default_rng(10**6 + seed).choice(4, size=2, p=guess).tolist()
        taken = drawn[: accepted(drafts, drawn)]
        accepted_drafts += len(taken) - 1
        for place, token in enumerate(taken[:2]):
            counts[place, token] += 1
    assert 500 < accepted_drafts < 4000
    for row in counts:
        total = row.sum()
        chi_square = float((((row - total * target) ** 2) / (total * target)).sum())
        assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001
