"""Capacity policies under pressure: the same tokens, no starvation, and the bounds that hold."""

from __future__ import annotations

import random

import pytest

from enginewright.executor.admission import MAX_OVERTAKEN
from enginewright.executor.sampling import TokenParams
from tests.executor.harness import Harness, make_limits
from tests.support.fake_session import expected_tokens


def counter(harness: Harness, name: str) -> int:
    value = harness.stats()[name]
    assert isinstance(value, int)
    return value


def run_random(harness: Harness, seed: int, count: int = 40) -> None:
    """Submit requests as steps go by, run to the end, and compare every answer."""
    shuffle = random.Random(seed)
    sent: dict[str, tuple[list[int], TokenParams]] = {}
    for number in range(count):
        shared = [shuffle.randrange(3)] * shuffle.randrange(14)
        prompt = [*shared, *(shuffle.randrange(101) for _ in range(1 + shuffle.randrange(12)))]
        params = TokenParams(
            max_tokens=1 + shuffle.randrange(24),
            temperature=shuffle.choice([0.0, 0.9]),
            repetition_penalty=shuffle.choice([1.0, 1.0, 1.2]),
            seed=number,
            eos_token_ids=(7,),
        )
        sent[str(number)] = (prompt, params)
        harness.submit(str(number), prompt, params)
        for _ in range(shuffle.randrange(4)):
            harness.step()
    harness.run()
    for name, (prompt, params) in sent.items():
        assert (harness.tokens(name), harness.end(name).finish_reason) == expected_tokens(
            prompt, params, harness.limits
        )


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization", "static_batch"])
@pytest.mark.parametrize("seed", range(4))
def test_every_policy_gives_the_same_tokens_under_pressure(
    policy: str, overlap: bool, seed: int
) -> None:
    limits = make_limits(num_blocks=14, block_tokens=4, max_batch_size=6, max_num_tokens=12)
    harness = Harness(limits, capacity_policy=policy, overlap=overlap)
    run_random(harness, seed)
    assert (counter(harness, "pauses") > 0) == (policy == "max_utilization")
    if overlap:
        assert counter(harness, "wasted_tokens") <= 40  # one a sequence that ended


def test_the_newest_pauses_and_goes_on_with_what_it_had() -> None:
    limits = make_limits(num_blocks=6, block_tokens=4, max_num_tokens=64)
    harness = Harness(limits, capacity_policy="max_utilization")
    harness.submit("old", [1] * 8, TokenParams(max_tokens=14))
    harness.submit("new", [2] * 8, TokenParams(max_tokens=6))
    harness.step()
    assert len(harness.executor.scheduler.running) == 2
    while counter(harness, "pauses") == 0:
        harness.step()
    (running,) = harness.executor.scheduler.running.values()
    (waiting,) = harness.executor.scheduler.waiting.values()
    assert (running.request_id, waiting.request_id) == ("old", "new")
    assert 0 < len(harness.tokens("new")) < 6
    harness.run()
    assert len(harness.tokens("old")) == 14
    for name, prompt, count in (("old", [1] * 8, 14), ("new", [2] * 8, 6)):
        params = TokenParams(max_tokens=count)
        assert harness.tokens(name) == expected_tokens(prompt, params, limits)[0]


def test_a_paused_request_finds_its_blocks_again() -> None:
    limits = make_limits(num_blocks=10, block_tokens=4, max_num_tokens=64)
    harness = Harness(limits, capacity_policy="max_utilization")
    harness.submit("old", [1] * 12, TokenParams(max_tokens=20))
    harness.submit("new", [2] * 12, TokenParams(max_tokens=20))
    harness.run()
    assert counter(harness, "pauses") >= 1
    assert counter(harness, "prompt_tokens") < 2 * 12 + 16  # not all was computed again


def test_a_static_batch_ends_before_the_next_begins() -> None:
    harness = Harness(make_limits(max_num_tokens=64), capacity_policy="static_batch")
    harness.submit("a", [1], TokenParams(max_tokens=6))
    harness.submit("b", [2], TokenParams(max_tokens=2))
    harness.step()
    harness.submit("c", [3], TokenParams(max_tokens=2))
    for _ in range(4):
        harness.step()
        assert not harness.outputs["c"]
    assert harness.executor.scheduler.report.live_view()["waiting_by_cause"] == {"batch": 1}
    harness.run()
    assert harness.end("c").finish_reason == "length"


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
def test_a_large_request_is_overtaken_but_not_starved(policy: str) -> None:
    limits = make_limits(num_blocks=16, block_tokens=4, max_batch_size=4, max_num_tokens=64)
    harness = Harness(limits, max_queue=1000, capacity_policy=policy)
    harness.submit("first", [9] * 4, TokenParams(max_tokens=20))
    harness.step()
    harness.submit("large", [8] * 52, TokenParams(max_tokens=8))
    for number in range(60):
        harness.submit(str(number), [number, 2, 3], TokenParams(max_tokens=5))
    started_before = 0
    harness.step()
    while any(one.request_id == "large" for one in harness.executor.scheduler.waiting.values()):
        started_before = sum(bool(harness.outputs[str(n)]) for n in range(60))
        harness.step()
    assert 0 < started_before <= MAX_OVERTAKEN
    harness.run()
    assert len(harness.tokens("large")) == 8


@pytest.mark.parametrize("overlap", [False, True])
def test_the_oldest_of_many_that_do_not_fit_together_always_goes_on(overlap: bool) -> None:
    limits = make_limits(num_blocks=8, block_tokens=4, max_batch_size=8, max_num_tokens=8)
    harness = Harness(limits, capacity_policy="max_utilization", overlap=overlap)
    for number in range(8):
        harness.submit(str(number), [number] * 12, TokenParams(max_tokens=20))
    harness.run(3000)
    for number in range(8):
        params = TokenParams(max_tokens=20)
        assert harness.tokens(str(number)) == expected_tokens([number] * 12, params, limits)[0]
