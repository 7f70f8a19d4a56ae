"""The executor's own counters and gauges, asked for at every scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ..runtime.errors import EnginewrightError
from .client import Client

_GAUGES = {
    "running": ("num_requests_running", "Sequences that have KV blocks and take part in steps."),
    "waiting": ("num_requests_waiting", "Sequences in the queue."),
    "used_blocks": ("kv_blocks_used", "KV blocks that sequences hold."),
    "free_blocks": ("kv_blocks_free", "KV blocks that are free."),
    "num_blocks": ("kv_blocks_max", "KV blocks in the pool."),
    "kv_tokens": ("kv_tokens", "Tokens in the KV blocks that are used."),
}
_COUNTERS = {
    "steps": ("steps", "Steps that ran."),
    "failed_steps": ("failed_steps", "Steps that failed."),
    "busy_seconds": ("busy_seconds", "Time spent in steps."),
    "prompt_tokens": ("computed_prompt_tokens", "Prompt tokens computed."),
    "cached_tokens": ("cached_prompt_tokens", "Prompt tokens found in the KV cache."),
}
_HISTOGRAMS = {
    "batch_size": ("batch_size", "Sequences in a step."),
    "step_seconds": ("step_seconds", "Time of a step."),
    "host_seconds": ("step_host_seconds", "Time of a step that the device was not busy."),
}
_VLLM = ("num_requests_running", "num_requests_waiting")


class ExecutorCollector(Collector):
    """Reads `Client.stats()`; a dead executor shows as `enginewright_up 0`."""

    def __init__(self, client: Client, labels: Mapping[str, str]) -> None:
        self._client = client
        self._names = list(labels)
        self._values = list(labels.values())

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not ask the executor."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return all families; blocks until the executor has answered."""
        stats: Mapping[str, Any] = {}
        up = self._client.alive
        if up:
            try:
                stats = self._client.stats()
            except EnginewrightError:
                up = False
        yield self._gauge("enginewright_up", "Whether the executor process runs.", float(up))
        if up:
            yield from self._families(stats)

    def _families(self, stats: Mapping[str, Any]) -> Iterator[Metric]:
        for key, (name, text) in _GAUGES.items():
            yield self._gauge(f"enginewright_{name}", text, stats[key])
            if name in _VLLM:
                yield self._gauge(f"vllm:{name}", text, stats[key])
        used = stats["used_blocks"] / max(stats["num_blocks"], 1)
        for prefix in ("enginewright_", "vllm:"):
            yield self._gauge(f"{prefix}kv_cache_usage_perc", "Part of the KV blocks used.", used)
        for key, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"enginewright_{name}", text, labels=self._names)
            counter.add_metric(self._values, stats[key])
            yield counter
        rejected = CounterMetricFamily(
            "enginewright_rejected_requests",
            "Requests the executor refused, by cause.",
            labels=[*self._names, "cause"],
        )
        for cause, count in stats["rejected_by_cause"].items():
            rejected.add_metric([*self._values, cause], count)
        yield rejected
        for key, (name, text) in _HISTOGRAMS.items():
            yield self._histogram(f"enginewright_{name}", text, stats[key])

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=self._names)
        gauge.add_metric(self._values, value)
        return gauge

    def _histogram(self, name: str, text: str, data: Mapping[str, Any]) -> Metric:
        family = HistogramMetricFamily(name, text, labels=self._names)
        bounds = [*(str(float(bound)) for bound in data["bounds"]), "+Inf"]
        counts = accumulate(data["counts"])
        family.add_metric(
            self._values, list(zip(bounds, counts, strict=True)), sum_value=data["sum"]
        )
        return family
