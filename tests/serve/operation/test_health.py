"""What probes see of a server that is well, dead, hung, slow or draining."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from enginewright.serve.operation import health as health_module
from enginewright.serve.operation.config import ServeConfig
from enginewright.serve.operation.stats_probe import StatsProbe
from tests.serve.conftest import wait_until
from tests.serve.fake_client import FakeClient

from .conftest import Operate


def test_well(operate: Operate) -> None:
    with operate() as served:
        assert served.request("GET", "/health").json == {"status": "ok"}
        assert served.request("GET", "/health/ready").json == {"status": "ready"}
        generated = served.request("GET", "/health/generate")
        assert (generated.status, generated.json["status"]) == (200, "ok")
        assert served.client.submitted[0].max_tokens == 1


def test_dead(operate: Operate, fake: FakeClient) -> None:
    with operate() as served:
        fake.alive = False
        for path in ("/health", "/health/ready", "/health/generate"):
            reply = served.request("GET", path)
            assert (reply.status, reply.json["error"]["code"]) == (503, "executor_died")


def test_hung(operate: Operate, fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that lives but does not answer counts as hung after --hang-timeout."""
    stuck, answer = threading.Event(), fake.stats

    def stats() -> dict[str, Any]:
        stuck.wait()
        return answer()

    monkeypatch.setattr(fake, "stats", stats)
    monkeypatch.setattr(health_module, "_PATIENCE_SECONDS", 0.01)
    with operate(ServeConfig(hang_timeout=0.2)) as served:
        assert served.request("GET", "/health").status == 200  # slow is not yet ill
        wait_until(lambda: served.service.probe.hung)
        for path in ("/health", "/health/ready"):
            reply = served.request("GET", path)
            assert (reply.status, reply.json["error"]["code"]) == (503, "executor_hung")
        assert served.request("GET", "/dashboard/state").json["status"] == "hung"
        stuck.set()
        wait_until(lambda: not served.service.probe.hung)
        assert served.request("GET", "/health").status == 200


def test_a_hang_is_noticed_though_nobody_asks(
    fake: FakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's own pulse asks, so that the first probe after a hang says 503."""
    go = threading.Event()
    monkeypatch.setattr(fake, "stats", go.wait)
    probe = StatsProbe(fake, hang_timeout=0.1)

    async def hang_and_recover() -> None:
        pulse = asyncio.create_task(probe.keep_asking())
        while not caplog.records:
            await asyncio.sleep(0.01)
        assert probe.hung
        go.set()
        while probe.hung:
            await asyncio.sleep(0.01)
        pulse.cancel()

    asyncio.run(asyncio.wait_for(hang_and_recover(), 20))
    assert "/health says 503" in caplog.text


def test_no_token_in_time(
    operate: Operate, fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "_GENERATE_SECONDS", 0.05)
    aborted: list[str] = []
    monkeypatch.setattr(fake, "submit", lambda *_: None)
    monkeypatch.setattr(fake, "abort", aborted.append)
    with operate() as served:
        reply = served.request("GET", "/health/generate")
        assert (reply.status, reply.json["error"]["code"]) == (503, "generation_timeout")
        assert len(aborted) == 1


def test_many_askers_put_one_question(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    go, answer = threading.Event(), fake.stats

    def stats() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        go.wait()
        return answer()

    monkeypatch.setattr(fake, "stats", stats)
    probe = StatsProbe(fake)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(probe.ask(20.0))) for _ in range(5)]
    for thread in threads:
        thread.start()
    wait_until(lambda: asked == 1)
    assert probe.ask(0.01) is None
    go.set()
    for thread in threads:
        thread.join()
    assert [stats["num_blocks"] for stats in found] == [64] * 5
    assert probe.silent_seconds == 0.0
