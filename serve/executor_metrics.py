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

from .client import Client
from .operation.stats_probe import StatsProbe

_PATIENCE_SECONDS = 5.0  # a scrape must end, also when the executor hangs

_GAUGES = {
    "running": ("num_requests_running", "Sequences that have KV blocks and take part in steps."),
    "waiting": ("num_requests_waiting", "Sequences in the queue."),
    "used_blocks": ("kv_blocks_used", "KV blocks that sequences hold."),
    "free_blocks": ("kv_blocks_free", "KV blocks that are free."),
    "num_blocks": ("kv_blocks_max", "KV blocks in the pool."),
    "kv_tokens": ("kv_tokens", "Tokens in the KV blocks that are used."),
    "waiting_tokens": ("waiting_tokens", "Prompt tokens in the queue."),
    "cached_blocks": ("kv_blocks_cached", "KV blocks that nobody holds and the cache keeps."),
    "pinned_blocks": ("kv_blocks_pinned", "KV blocks that the cache may not drop."),
    "disk_blocks": ("kv_disk_blocks", "KV blocks in files (--kv-cache-disk)."),
    "disk_bytes": ("kv_disk_bytes", "Bytes of those files."),
    "context": ("num_requests_context", "Running sequences that still read their prompt."),
}
_COUNTERS = {
    "steps": ("steps", "Steps that ran."),
    "failed_steps": ("failed_steps", "Steps that failed."),
    "busy_seconds": ("busy_seconds", "Time spent in steps."),
    "prompt_tokens": ("computed_prompt_tokens", "Prompt tokens computed."),
    "cached_tokens": ("cached_prompt_tokens", "Prompt tokens found in the KV cache."),
    "wasted_tokens": ("wasted_tokens", "Tokens computed for answers that had ended."),
    "disk_saved_blocks": ("kv_disk_saved_blocks", "KV blocks written to files."),
    "disk_loaded_blocks": ("kv_disk_loaded_blocks", "KV blocks read from files."),
    "disk_dropped_blocks": ("kv_disk_dropped_blocks", "KV blocks that the disk did not take."),
    "disk_damaged_files": ("kv_disk_damaged_files", "Files that were not as they should be."),
    "disk_write_errors": ("kv_disk_write_errors", "Writes that failed, e.g. on a full disk."),
    "disk_load_seconds": ("kv_disk_load_seconds", "Time spent in reading KV blocks."),
    "disk_cached_tokens": ("kv_disk_cached_tokens", "Prompt tokens found in files."),
    "pauses": ("preemptions", "Sequences that lost their KV blocks to others for a while."),
}
_HISTOGRAMS = {
    "batch_size": ("batch_size", "Sequences in a step."),
    "step_seconds": ("step_seconds", "Time of a step."),
    "host_seconds": ("step_host_seconds", "Time of a step that the device was not busy."),
}
_VLLM = ("num_requests_running", "num_requests_waiting")
_VLLM_COUNTERS = {
    "vllm:prefix_cache_queries": (("prompt_tokens", "cached_tokens"), "Prompt tokens looked up."),
    "vllm:prefix_cache_hits": (("cached_tokens",), "Prompt tokens found."),
    "vllm:num_preemptions": (("pauses",), "Sequences paused."),
}


class ExecutorCollector(Collector):
    """Asks for statistics; an executor that gives none shows as `enginewright_up 0`."""

    def __init__(self, client: Client, probe: StatsProbe, labels: Mapping[str, str]) -> None:
        self._client = client
        self._probe = probe
        self._names = list(labels)
        self._values = list(labels.values())

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not ask the executor."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return all families; blocks until the executor has answered, for a while at most."""
        stats = self._probe.ask(_PATIENCE_SECONDS) if self._client.alive else None
        text = "Whether the executor process runs and answers."
        yield self._gauge("enginewright_up", text, float(stats is not None))
        text = "For how long the executor has left a question open."
        silent = self._probe.silent_seconds if self._client.alive else 0.0
        yield self._gauge("enginewright_executor_silent_seconds", text, silent)
        if stats is not None:
            yield from self._families(stats)

    def _families(self, stats: Mapping[str, Any]) -> Iterator[Metric]:
        for key, (name, text) in _GAUGES.items():
            if key in stats:
                yield self._gauge(f"enginewright_{name}", text, stats[key])
                if name in _VLLM:
                    yield self._gauge(f"vllm:{name}", text, stats[key])
        used = stats["used_blocks"] / max(stats["num_blocks"], 1)
        for prefix in ("enginewright_", "vllm:"):
            yield self._gauge(f"{prefix}kv_cache_usage_perc", "Part of the KV blocks used.", used)
        room = stats["used_blocks"] * self._client.info.block_tokens
        empty = 1 - stats["kv_tokens"] / room if room else 0.0
        text = "Part of the used KV blocks that holds no token."
        yield self._gauge("enginewright_kv_fragmentation", text, max(empty, 0.0))
        for key, (name, text) in _COUNTERS.items():
            if key in stats:
                yield self._counter(f"enginewright_{name}", text, stats[key])
        for name, (keys, text) in _VLLM_COUNTERS.items():
            yield self._counter(name, text, sum(stats.get(key, 0) for key in keys))
        yield self._by_cause(
            CounterMetricFamily,
            "rejected_requests",
            "Requests refused.",
            stats["rejected_by_cause"],
        )
        waiting = stats.get("waiting_by_cause", {})
        yield self._by_cause(GaugeMetricFamily, "waiting_by_cause", "Why requests wait.", waiting)
        for key, (name, text) in _HISTOGRAMS.items():
            yield self._histogram(f"enginewright_{name}", text, stats[key])

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=self._names)
        gauge.add_metric(self._values, value)
        return gauge

    def _counter(self, name: str, text: str, value: float) -> Metric:
        counter = CounterMetricFamily(name, text, labels=self._names)
        counter.add_metric(self._values, value)
        return counter

    def _by_cause(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        causes: Mapping[str, float],
    ) -> Metric:
        family = kind(f"enginewright_{name}", text, labels=[*self._names, "cause"])
        for cause, count in causes.items():
            family.add_metric([*self._values, cause], count)
        return family

    def _histogram(self, name: str, text: str, data: Mapping[str, Any]) -> Metric:
        family = HistogramMetricFamily(name, text, labels=self._names)
        bounds = [*(str(float(bound)) for bound in data["bounds"]), "+Inf"]
        counts = accumulate(data["counts"])
        family.add_metric(
            self._values, list(zip(bounds, counts, strict=True)), sum_value=data["sum"]
        )
        return family
