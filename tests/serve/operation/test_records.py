"""Logs and traces: what is told of each request."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from enginewright.serve.operation.logs import JsonFormatter, TextFormatter
from enginewright.serve.operation.request_record import RequestRecord
from enginewright.serve.operation.tracing import Tracer
from tests.serve.conftest import wait_until
from tests.serve.fake_client import FakeClient

from .conftest import Operate

HI = {"prompt": "Hi", "max_tokens": 5, "ignore_eos": True}


def test_a_record_knows_its_request(operate: Operate) -> None:
    ended: list[RequestRecord] = []
    with operate(listener=ended.append) as served:
        served.post("/v1/completions", HI | {"stream": True})
        served.post("/v1/completions", {"prompt": []})
        wait_until(lambda: len(ended) == 2)
    answer, refused = (record.facts() for record in ended)
    assert (answer["method"], answer["path"], answer["status"]) == ("POST", "/v1/completions", 200)
    assert (answer["generation_tokens"], answer["finish_reason"]) == (5, "length")
    assert answer["prompt_tokens"] > 0
    assert 0 < answer["first_token_seconds"] <= answer["seconds"]
    assert refused["status"] == 400
    assert refused["error"].startswith("invalid_request: prompt")


def test_a_failed_stream_is_told(operate: Operate, fake: FakeClient) -> None:
    ended: list[RequestRecord] = []
    fake.step_seconds = 0.01
    with operate(listener=ended.append) as served:
        with served.open_raw("/v1/completions", HI | {"stream": True, "max_tokens": 400}) as raw:
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
            fake.kill()
            wait_until(lambda: len(ended) == 1)
        [error] = served.request("GET", "/dashboard/state").json["errors"]
    assert ended[0].error.startswith("executor_died: ")
    assert error["error"] == ended[0].error


def log_record(**facts: Any) -> logging.LogRecord:
    record = logging.LogRecord("enginewright.requests", logging.INFO, "", 0, "hello", (), None)
    record.facts = facts
    return record


def test_json_lines() -> None:
    line = json.loads(JsonFormatter().format(log_record(request_id="a", status=200)))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "enginewright.requests",
        "message": "hello",
        "request_id": "a",
        "status": 200,
    }


def test_text_lines() -> None:
    line = TextFormatter().format(log_record(status=400, error='a "b"\nc'))
    assert line.endswith('INFO    hello status=400 error="a \\"b\\"\\nc"')


def test_traces(operate: Operate) -> None:
    reason = "the extra [otel] is not installed"
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=reason)
    export = pytest.importorskip("opentelemetry.sdk.trace.export", reason=reason)
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=reason
    )
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tracer = Tracer(provider, "fake")
    with operate(listener=tracer) as served:
        served.post("/v1/completions", HI)
        served.request("GET", "/health")
        wait_until(lambda: len(exporter.get_finished_spans()) == 4)
    tracer.close()
    *phases, request = exporter.get_finished_spans()
    assert [span.name for span in phases] == ["queue", "prefill", "decode"]
    assert request.name == "POST /v1/completions"
    assert request.attributes["gen_ai.usage.output_tokens"] == 5
    assert request.attributes["http.response.status_code"] == 200
    for span in phases:
        assert span.parent.span_id == request.context.span_id
        assert request.start_time <= span.start_time <= span.end_time <= request.end_time


def test_a_trace_goes_on_from_the_client() -> None:
    reason = "the extra [otel] is not installed"
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=reason)
    export = pytest.importorskip("opentelemetry.sdk.trace.export", reason=reason)
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=reason
    )
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    record = RequestRecord("id", "POST", "/v1/completions", status=500, error="boom")
    record.trace_parent = f"00-{'a' * 32}-{'b' * 16}-01"
    Tracer(provider, "fake")(record)
    [span] = exporter.get_finished_spans()
    assert span.context.trace_id == int("a" * 32, 16)
    assert span.parent.span_id == int("b" * 16, 16)
    assert span.status.description == "boom"
