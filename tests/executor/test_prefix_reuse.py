"""Prefix reuse through the whole executor: what is computed, what is copied, the same tokens."""

from __future__ import annotations

import pytest

from enginewright.executor.sampling import SamplingParams, TokenParams
from tests.executor.harness import Harness, make_limits
from tests.support.fake_session import expected_tokens

SHARED = list(range(40, 60))


def serve(harness: Harness, request_id: str, prompt: list[int], **params: object) -> int:
    """Run one request to its end; returns its cached tokens."""
    given = TokenParams(**{"max_tokens": 4, **params})  # type: ignore[arg-type]
    harness.submit(request_id, prompt, given)
    harness.run()
    assert (harness.tokens(request_id), harness.end(request_id).finish_reason) == expected_tokens(
        prompt, given, harness.limits
    )
    return harness.outputs[request_id][0].cached_tokens


def computed(harness: Harness) -> int:
    """Prompt tokens that were computed so far."""
    value = harness.stats()["prompt_tokens"]
    assert isinstance(value, int)
    return value


def test_full_blocks_are_shared_and_a_part_of_one_is_copied() -> None:
    harness = Harness(make_limits(block_tokens=8))
    assert serve(harness, "a", [*SHARED, 1, 2, 3, 4]) == 0
    assert serve(harness, "b", [*SHARED, 9, 9]) == 20  # two blocks, and half of the third by copy
    assert harness.session.copies == 1
    assert computed(harness) == 24 + 2


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    harness = Harness(make_limits(block_tokens=4))
    assert serve(harness, "a", SHARED[:8]) == 0
    assert serve(harness, "b", SHARED[:8]) == 7


def test_answers_are_found_again_as_the_next_prompt_of_a_conversation() -> None:
    harness = Harness(make_limits(block_tokens=4))
    serve(harness, "a", SHARED[:6], max_tokens=12)
    answer = harness.tokens("a")
    assert serve(harness, "b", [*SHARED[:6], *answer, 7]) == 16  # the last answer token has no KV


def test_salts_do_not_share() -> None:
    harness = Harness(make_limits(block_tokens=4))
    assert serve(harness, "a", SHARED, cache_salt="x") == 0
    assert serve(harness, "b", SHARED, cache_salt="y") == 0
    assert serve(harness, "c", SHARED) == 0
    assert serve(harness, "d", SHARED, cache_salt="x") == 19


def test_a_request_waits_for_a_prefix_that_another_computes() -> None:
    harness = Harness(make_limits(block_tokens=4, max_num_tokens=8))
    params = TokenParams(max_tokens=2)
    for name, last in (("a", 1), ("b", 2), ("c", 3)):
        harness.submit(name, [*SHARED, last], params)
    for _ in range(3):
        harness.step()
    view = harness.executor.scheduler.report.live_view()
    assert view["waiting_by_cause"] == {"prefix": 2}
    harness.run()
    assert computed(harness) == 21 + 1 + 1
    for name, last in (("a", 1), ("b", 2), ("c", 3)):
        assert harness.tokens(name) == expected_tokens([*SHARED, last], params, harness.limits)[0]


def test_who_waits_for_a_prefix_goes_on_when_its_maker_is_aborted() -> None:
    harness = Harness(make_limits(block_tokens=4, max_num_tokens=8))
    harness.submit("a", [*SHARED, 1], TokenParams(max_tokens=2))
    harness.submit("b", [*SHARED, 2], TokenParams(max_tokens=2))
    harness.step()
    harness.abort("a")
    harness.run()
    assert harness.outputs["b"][0].cached_tokens == 8
    assert harness.end("b").finish_reason == "length"


def test_eviction_makes_room_and_what_was_evicted_is_computed_again() -> None:
    harness = Harness(make_limits(block_tokens=4, num_blocks=8, max_num_tokens=64))
    for number in range(6):
        assert serve(harness, str(number), [number] * 12) == 0
    gauges = harness.executor.scheduler.report.gauges()
    assert gauges["free_blocks"] == 8
    assert gauges["cached_blocks"] > 0
    assert serve(harness, "again", [0] * 12) == 0
    assert serve(harness, "newest", [5] * 12) > 0


def test_pinned_prompts_outlive_a_scan_but_never_stop_a_request() -> None:
    harness = Harness(make_limits(block_tokens=4, num_blocks=10, max_num_tokens=64))
    serve(harness, "pin", SHARED, max_tokens=1, pin=True)
    assert harness.executor.scheduler.report.gauges()["pinned_blocks"] == 5
    for number in range(8):
        serve(harness, str(number), [number] * 8)
    assert serve(harness, "hit", [*SHARED, 1]) == 20
    serve(harness, "large", list(range(36)), max_tokens=4)  # the whole pool
    assert harness.executor.scheduler.report.gauges()["pinned_blocks"] == 0


def test_what_the_queue_will_hit_is_not_evicted() -> None:
    harness = Harness(make_limits(block_tokens=4, num_blocks=12, max_num_tokens=64))
    serve(harness, "warm", SHARED)
    for number in range(5):
        harness.submit(f"long{number}", [number] * 16, TokenParams(max_tokens=12))
    harness.submit("hit", [*SHARED, 1], TokenParams(max_tokens=4))
    harness.run()
    assert harness.outputs["hit"][0].cached_tokens == 20


def test_prompt_logprobs_compute_the_whole_prompt() -> None:
    harness = Harness(make_limits(block_tokens=4))
    serve(harness, "a", SHARED)
    harness.submit("b", SHARED, TokenParams(max_tokens=2, prompt_logprobs=0, num_logprobs=0))
    harness.run()
    assert harness.outputs["b"][-1].cached_tokens == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_copies_of_one_prompt_are_computed_once(overlap: bool) -> None:
    harness = Harness(make_limits(block_tokens=4, max_batch_size=8), overlap=overlap)
    params = TokenParams(max_tokens=5)
    for number in range(6):
        harness.submit(str(number), SHARED, params)
    harness.run()
    assert computed(harness) <= 20 + 5 * 4
    for number in range(6):
        assert harness.tokens(str(number)) == expected_tokens(SHARED, params, harness.limits)[0]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
def test_n_answers_share_the_prompts_blocks_and_copy_the_one_they_write(
    policy: str, overlap: bool
) -> None:
    """A prompt of 5 full blocks and a half: the half is copied, and each answer writes its own."""
    limits = make_limits(block_tokens=4, max_batch_size=8)
    harness = Harness(limits, overlap=overlap, capacity_policy=policy)
    prompt = [*SHARED, 77, 78]
    wanted = SamplingParams(n=4, max_tokens=7, temperature=0.9, seed=3)
    for index in range(4):
        harness.submit(str(index), prompt, wanted.resolve(index=index))
    running = harness.executor.scheduler.running
    while len(running) < 4 or any(one.new_tokens < 3 for one in running.values()):
        harness.step()
    tables = [one.blocks for one in running.values()]
    assert all(table[:5] == tables[0][:5] for table in tables)
    own = [block for table in tables for block in table[5:]]
    assert len(set(own)) == len(own)
    gauges = harness.executor.scheduler.report.gauges()
    assert gauges["used_blocks"] == 5 + len(own)
    assert harness.session.copies == 3
    harness.run()
    assert computed(harness) == 22 + 3  # all of it once, and its last token for the other three
    for index in range(4):
        params = wanted.resolve(index=index)
        assert harness.tokens(str(index)) == expected_tokens(prompt, params, limits)[0]
    assert len({tuple(harness.tokens(str(index))) for index in range(4)}) == 4
