"""Steps that fail after the device, hung devices, and executors that are started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from enginewright.executor import scheduler as scheduler_module
from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.sampling import TokenParams
from enginewright.executor.supervisor import SupervisedClient
from enginewright.runtime.errors import ExecutorDiedError
from tests.executor.harness import Harness, make_limits
from tests.executor.test_client import Sink, command, private_temp
from tests.support.fake_session import expected_tokens

__all__ = ["private_temp"]


def raise_once(function: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    """Return a function that raises at the first call for which `when` holds."""
    raised: list[int] = []

    def wrapped(*arguments: Any) -> Any:
        if not raised and when(*arguments):
            raised.append(1)
            raise ZeroDivisionError("oops")
        return function(*arguments)

    return wrapped


def three_requests(overlap: bool) -> Harness:
    """Two requests that run together from the first step on, and one that waits."""
    harness = Harness(make_limits(max_batch_size=2, max_num_tokens=64), overlap=overlap)
    for number, name in enumerate("abc"):
        harness.submit(name, [number, 3, 3], TokenParams(max_tokens=12))
    return harness


def outcomes(harness: Harness) -> dict[str, str]:
    """Run to the end; return how each request ended, whose tokens are right as far as they go."""
    harness.run()
    found: dict[str, str] = {}
    for number, name in enumerate("abc"):
        params = TokenParams(max_tokens=12)
        expected = expected_tokens([number, 3, 3], params, harness.limits)[0]
        tokens, end = harness.tokens(name), harness.end(name)
        assert tokens == expected[: len(tokens)]
        if end.error is None:
            assert tokens == expected
            found[name] = str(end.finish_reason)
        else:
            assert "ZeroDivisionError: oops" in end.error.message
            found[name] = end.error.code
    assert harness.executor.scheduler.report.gauges()["used_blocks"] == 0
    return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("place", ["take_tokens", "publish", "end"])
def test_news_that_cannot_be_taken_in_end_their_request_alone(
    place: str, overlap: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = three_requests(overlap)
    cache = harness.executor.scheduler._cache
    if place == "take_tokens":
        broken = raise_once(scheduler_module.take_tokens, lambda request, *_: request.number == 0)
        monkeypatch.setattr(scheduler_module, "take_tokens", broken)
    elif place == "publish":
        monkeypatch.setattr(
            cache, "publish", raise_once(cache.publish, lambda one, _: not one.number)
        )
    else:
        stats = harness.executor.stats
        broken = raise_once(stats.first_token, lambda request: request.number == 0)
        monkeypatch.setattr(stats, "first_token", broken)
    assert outcomes(harness) == {"a": "step_failed", "b": "length", "c": "length"}
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_an_update_that_raises_ends_the_requests_of_its_step_and_the_loop_lives(
    late: bool, overlap: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = three_requests(overlap)
    scheduler = harness.executor.scheduler
    update, calls = scheduler.update, []

    def broken(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            if late:
                update(*arguments)
            raise ZeroDivisionError("oops")
        return update(*arguments)

    monkeypatch.setattr(scheduler, "update", broken)
    assert outcomes(harness) == {"a": "step_failed", "b": "step_failed", "c": "length"}
    assert harness.executor.stats.failed_steps >= 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_request_that_breaks_the_intake_gets_the_error_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = three_requests(False)
    scheduler = harness.executor.scheduler
    broken = raise_once(scheduler.submit, lambda name, *_: name == "b")
    monkeypatch.setattr(scheduler, "submit", broken)
    assert outcomes(harness) == {"a": "length", "b": "internal_error", "c": "length"}
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_hung_device_ends_the_process_with_all_stacks(
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = ExecutorConfig(hang_timeout=0.5)
    client = ExecutorClient.start("some/engine", config, command("hang"))
    sink = Sink()
    client.submit("a", [1], TokenParams(max_tokens=50), sink)
    error = sink.end().error
    assert error is not None
    assert (error.code, error.http_status) == ("executor_died", 503)
    assert "--step-timeout" in error.message
    assert not client.alive
    client.shutdown()
    log = capfd.readouterr().err
    assert "The executor hangs" in log
    assert "in wait" in log  # where the loop's thread stands


def test_a_hung_step_is_reported_once_and_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    config = ExecutorConfig(report_timeout=0.2)
    client = ExecutorClient.start("some/engine", config, command("hang"))
    client.submit("a", [1], TokenParams(max_tokens=50), Sink())
    log = ""
    for _ in range(200):
        log += capfd.readouterr().err
        if "in wait" in log:
            break
        time.sleep(0.05)
    time.sleep(0.5)
    log += capfd.readouterr().err
    assert log.count("The executor hangs: a step has taken more than 0.2 s (--hang-timeout)") == 1
    assert "in wait" in log  # where the loop's thread stands
    assert client.alive
    client.shutdown(0.1)


def _ask_until_it_hangs(client: ExecutorClient) -> None:
    for _ in range(100):
        client.stats(timeout=0.2)


def test_statistics_of_a_hung_executor_are_not_waited_for_for_ever() -> None:
    client = ExecutorClient.start("some/engine", ExecutorConfig(hang_timeout=None), command("hang"))
    try:
        assert client.stats(timeout=20)["submitted"] == 0
        client.submit("a", [1], TokenParams(max_tokens=50), Sink())
        with pytest.raises(TimeoutError, match=r"has not answered for 0\.2 s"):
            _ask_until_it_hangs(client)
    finally:
        client.shutdown(timeout=0.1)


def test_a_supervised_executor_is_started_again(capfd: pytest.CaptureFixture[str]) -> None:
    client = SupervisedClient(lambda: ExecutorClient.start("e", None, command("slow")))
    sink, again = Sink(), Sink()
    client.submit("a", [1], TokenParams(max_tokens=4000), sink)
    sink.next()
    pid = client.pid
    os.kill(pid, signal.SIGKILL)
    error = sink.end().error
    assert error is not None
    assert error.code == "executor_died"
    for _ in range(600):
        if client.alive and client.pid != pid:
            break
        time.sleep(0.05)
    client.submit("a", [1], TokenParams(max_tokens=2), again)
    assert again.end().finish_reason == "length"
    assert client.stats()["restarts"] == client.restarts == 1
    client.shutdown()
    client.shutdown()
    assert not client.alive
    with pytest.raises(ExecutorDiedError):
        client.submit("b", [1], TokenParams(), Sink())
    assert "started again" in capfd.readouterr().err


def test_a_supervisor_that_is_ended_while_it_waits_starts_nothing() -> None:
    starts: list[int] = []

    def start() -> ExecutorClient:
        starts.append(1)
        return ExecutorClient.start("e", None, command("fast"))

    client = SupervisedClient(start)
    os.kill(client.pid, signal.SIGKILL)
    while client.alive:
        time.sleep(0.01)
    client.shutdown()
    assert starts == [1]
