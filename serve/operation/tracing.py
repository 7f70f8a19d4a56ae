"""OpenTelemetry traces: a span a request, made when it has ended. Needs the extra `[otel]`."""

from __future__ import annotations

from typing import Any

from ...runtime.errors import InputError
from .request_record import RequestRecord


class Tracer:
    """Turns records into spans named by OpenTelemetry's conventions for generative AI."""

    def __init__(self, provider: Any, model_name: str) -> None:
        """Take a TracerProvider of opentelemetry-sdk."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._provider = provider
        self._tracer = provider.get_tracer("enginewright")
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name

    def __call__(self, record: RequestRecord) -> None:
        """Report one request: its span, and one each for the queue, the prompt and the answer."""
        if record.method != "POST":
            return
        trace = self._trace
        parent = self._propagator.extract({"traceparent": record.trace_parent})
        span = self._tracer.start_span(
            f"{record.method} {record.path}",
            context=parent,
            kind=trace.SpanKind.SERVER,
            start_time=_nanoseconds(record.arrived),
            attributes=self._attributes(record),
        )
        if record.status >= 500 or record.finish_reason == "error":
            span.set_status(trace.StatusCode.ERROR, record.error)
        inside = trace.set_span_in_context(span, parent)
        for name, begin, end in _phases(record):
            child = self._tracer.start_span(
                name, context=inside, start_time=_nanoseconds(record.arrived + begin)
            )
            child.end(_nanoseconds(record.arrived + end))
        span.end(_nanoseconds(record.arrived + record.seconds))

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()

    def _attributes(self, record: RequestRecord) -> dict[str, Any]:
        values = {
            "http.request.method": record.method,
            "url.path": record.path,
            "http.response.status_code": record.status,
            "enginewright.request_id": record.request_id,
            "enginewright.key": record.key_name or None,
            "gen_ai.system": "enginewright",
            "gen_ai.request.model": self._model_name,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.generation_tokens,
            "gen_ai.usage.cached_tokens": record.cached_tokens,
            "gen_ai.latency.time_in_queue": record.queue_seconds,
            "gen_ai.latency.time_to_first_token": record.first_token_seconds,
            "gen_ai.latency.e2e": record.seconds,
            "gen_ai.response.finish_reasons": record.finish_reason or None,
        }
        return {name: value for name, value in values.items() if value is not None}


def make_tracer(endpoint: str, model_name: str) -> Tracer:
    """Return a tracer that sends spans to an OTLP endpoint over HTTP.

    Raises InputError unless the extra `[otel]` is installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InputError(
            f"--otlp-traces-endpoint needs the extra `enginewright[otel]` ({error}); install it"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "enginewright"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return Tracer(provider, model_name)


def _phases(record: RequestRecord) -> list[tuple[str, float, float]]:
    """Return name, begin and end of each phase, in seconds from the arrival."""
    first, last = record.first_token_seconds, record.last_token_seconds
    if first is None or last is None:
        return []
    queue = min(record.queue_seconds or 0.0, first)
    return [("queue", 0.0, queue), ("prefill", queue, first), ("decode", first, last)]


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
