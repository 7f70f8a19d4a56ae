"""What the page is told, what it may load, and the metrics that dashboards name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from enginewright.serve.dashboard.state import PageState, percentile
from enginewright.serve.operation.stats_probe import StatsProbe
from enginewright.serve.operation.traffic import Traffic
from tests.serve.conftest import Served
from tests.serve.fake_client import FakeClient
from tests.support.grafana import dashboard, expressions

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "serve" / "dashboard"


def test_the_state(served: Served) -> None:
    served.post("/v1/completions", {"prompt": "Hi", "max_tokens": 4})
    state = served.request("GET", "/dashboard/state").json
    assert (state["model"], state["status"]) == ("fake", "ready")
    assert state["engine"]["num_blocks"] == 64
    assert len(state["blocks"]) == 64
    assert state["now"]["running"] == 0
    assert state["errors"] == []


def test_rates(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    counted: dict[str, Any] = {"generation_tokens": 0, "steps": 0, "busy_seconds": 0.0}
    plain = fake.stats
    monkeypatch.setattr(fake, "stats", lambda: plain() | counted)
    monkeypatch.setattr("enginewright.serve.dashboard.state.time.time", lambda: now[0])
    page = PageState(fake, StatsProbe(fake), Traffic(), "fake")
    assert page.state()["samples"] == []
    now[0] += 2.0
    counted |= {"generation_tokens": 50, "steps": 10, "busy_seconds": 1.0}
    [sample] = page.state()["samples"]
    assert sample["generation_rate"] == 25.0
    assert (sample["busy"], sample["step_ms"]) == (0.5, 100.0)
    now[0] += 0.1  # a second viewer asks in between
    assert len(page.state()["samples"]) == 1
    now[0] += 2.0
    assert page.state()["samples"][1]["generation_rate"] == 0.0


def test_percentile() -> None:
    assert [percentile([1.0, 2.0, 3.0, 4.0], rank) for rank in (50, 90, 99)] == [2.0, 4.0, 4.0]


def test_the_page_runs_nothing_foreign(served: Served) -> None:
    reply = served.request("GET", "/")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in PAGE.iterdir():
        if path.suffix in (".html", ".css", ".js"):
            text = path.read_text()
            assert not re.search(r"https?://(?!www\.w3\.org)", text), path.name
            assert not re.search(r"\bon\w+=|style=", text) or path.suffix != ".html"
            assert len(text.splitlines()) <= 250


def test_every_metric_of_the_grafana_dashboard_exists(served: Served) -> None:
    served.post("/v1/completions", {"prompt": "Hi", "max_tokens": 4})
    served.post("/v1/completions", {"prompt": []})
    text = served.request("GET", "/metrics").body.decode()
    exposed = set(re.findall(r"^([a-z][\w:]*)\{", text, flags=re.MULTILINE))
    named = {name for line in expressions() for name in re.findall(r"enginewright_\w+", line)}
    assert len(named) > 15
    assert named - exposed == set()


def test_the_grafana_file_is_the_dashboard() -> None:
    stored = json.loads((ROOT / "docs" / "grafana.json").read_text())
    assert stored == dashboard(), "run scripts/docs"


def test_the_names_of_vllm_dashboards_are_there(served: Served) -> None:
    served.post("/v1/completions", {"prompt": "Hi", "max_tokens": 4})
    text = served.request("GET", "/metrics").body.decode()
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "num_preemptions_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "request_time_per_output_token_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "request_queue_time_seconds_bucket",
        "request_prefill_time_seconds_bucket",
        "request_decode_time_seconds_bucket",
        "request_prompt_tokens_bucket",
        "request_generation_tokens_bucket",
        "cache_config_info",
    ):
        assert f"\nvllm:{name}{{" in text, name
