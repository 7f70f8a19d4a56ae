"""Who runs first: priorities, tenants' shares, deadlines, and the bounds of the queue."""

from __future__ import annotations

import time

import pytest

from enginewright.executor.messages import Submit
from enginewright.executor.sampling import TokenParams
from enginewright.executor.waiting import MAX_PASSED
from tests.executor.harness import Harness, make_limits


def order_of_ends(harness: Harness) -> list[str]:
    """Run to the end; return the ids in the order in which requests ended."""
    ended: list[str] = []
    while not harness.executor.scheduler.idle:
        harness.step()
        for name, outputs in harness.outputs.items():
            if name not in ended and outputs and outputs[-1].finish_reason:
                ended.append(name)
    return ended


def test_lower_priority_numbers_run_first() -> None:
    harness = Harness(make_limits(max_batch_size=1))
    for name, priority in (("late", 5), ("b", 0), ("c", 0), ("first", -1)):
        harness.submit(name, [1, 2], TokenParams(max_tokens=2, priority=priority))
    harness.executor.fetch()
    assert order_of_ends(harness) == ["first", "b", "c", "late"]


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_stream_of_urgent_requests_passes_a_low_class_a_bounded_number_of_times(
    batch: int, policy: str
) -> None:
    harness = Harness(make_limits(max_batch_size=batch), max_queue=1000, capacity_policy=policy)
    for number in range(120):
        params = TokenParams(max_tokens=2)
        harness.submit(f"u{number}", [number % 101, 1], params)
        if number in (3, 4, 5):
            params = TokenParams(max_tokens=2, priority=8 - number, tenant="low")
            harness.submit(f"low{number}", [number, 2], params)
    harness.executor.fetch()
    ended = order_of_ends(harness)
    # The first to have come of all lower classes is the next: each after at most MAX_PASSED others.
    places = [ended.index(f"low{number}") for number in (3, 4, 5)]
    assert places == sorted(places)
    for count, place in enumerate(places, 1):
        assert (MAX_PASSED - 1) * count < place + batch
        assert place < (MAX_PASSED + 1) * count + batch


def test_a_heavy_tenant_does_not_starve_a_light_one() -> None:
    harness = Harness(make_limits(max_batch_size=1))
    params = TokenParams(max_tokens=4, tenant="heavy")
    for number in range(20):
        harness.submit(f"h{number}", [number, 1], params)
    harness.step()
    for number in range(3):
        harness.submit(f"l{number}", [number, 2], TokenParams(max_tokens=4, tenant="light"))
    ended = order_of_ends(harness)
    # The two are served in turn: the light tenant's n-th comes after at most n + 2 of the other's.
    for number in range(3):
        assert ended.index(f"l{number}") <= 2 * number + 2
    assert [name for name in ended if name[0] == "h"] == [f"h{n}" for n in range(20)]


def test_weights_set_the_shares() -> None:
    harness = Harness(make_limits(max_batch_size=1), tenant_weights={"gold": 3.0})
    for number in range(24):
        for tenant in ("gold", "plain"):
            params = TokenParams(max_tokens=4, tenant=tenant)
            harness.submit(f"{tenant}{number}", [number, 1], params)
    harness.executor.fetch()
    first = order_of_ends(harness)[:24]
    assert 17 <= sum(name.startswith("gold") for name in first) <= 19


def test_a_tenant_cannot_save_up_service_while_it_is_away() -> None:
    harness = Harness(make_limits(max_batch_size=1))
    harness.submit("a0", [1], TokenParams(max_tokens=2, tenant="a"))
    harness.run()
    for number in range(10):
        harness.submit(f"b{number}", [number], TokenParams(max_tokens=8, tenant="b"))
    for _ in range(40):
        harness.step()
    for number in range(1, 5):
        harness.submit(f"a{number}", [number], TokenParams(max_tokens=8, tenant="a"))
    ended = order_of_ends(harness)
    assert ended.index("a4") > ended.index("b7")  # in turn, not all four at once


@pytest.mark.parametrize("started", [False, True])
def test_a_deadline_ends_a_request_as_an_error_and_never_as_an_empty_answer(started: bool) -> None:
    harness = Harness(make_limits(max_batch_size=1))
    if not started:
        harness.submit("before", [1], TokenParams(max_tokens=30))
        harness.step()
    params = TokenParams(max_tokens=30, deadline=0.05)
    harness.outputs["late"] = []
    harness.channel.commands.append(Submit("late", [2, 3], params, time.monotonic()))
    harness.step()
    harness.step()
    time.sleep(0.06)
    harness.run()
    end = harness.end("late")
    assert (end.finish_reason, len(harness.tokens("late")) > 0) == ("error", started)
    assert end.error is not None
    assert (end.error.code, end.error.http_status) == ("deadline_exceeded", 504)
    assert harness.executor.scheduler.report.gauges()["used_blocks"] == 0


def test_a_queue_timeout_counts_only_until_the_start() -> None:
    harness = Harness(make_limits(max_batch_size=1))
    now = time.monotonic()
    params = TokenParams(max_tokens=10, queue_timeout=0.05)
    for name in ("runs", "waits"):
        harness.outputs[name] = []
        harness.channel.commands.append(Submit(name, [2, 3], params, now))
    harness.step()
    time.sleep(0.06)
    harness.run()
    assert harness.end("runs").finish_reason == "length"
    error = harness.end("waits").error
    assert error is not None
    assert (error.code, error.http_status) == ("queue_timeout", 408)


def test_the_queue_is_bounded_by_prompt_tokens_too() -> None:
    harness = Harness(make_limits(max_batch_size=1), max_queue_tokens=10)
    for name in ("a", "b", "c"):
        harness.submit(name, [1] * 6, TokenParams(max_tokens=2))
    harness.run()
    assert harness.end("a").finish_reason == "length"
    error = harness.end("b").error
    assert error is not None
    assert (error.code, error.http_status) == ("overloaded", 429)
    assert "6 prompt tokens and may hold 10" in error.message
