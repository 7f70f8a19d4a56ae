"""Hung devices and executors that are started again."""

from __future__ import annotations

import os
import signal
import time

import pytest

from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.sampling import TokenParams
from enginewright.executor.supervisor import SupervisedClient
from enginewright.runtime.errors import ExecutorDiedError
from tests.executor.test_client import Sink, command, private_temp

__all__ = ["private_temp"]


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
