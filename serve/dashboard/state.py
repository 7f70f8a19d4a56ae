"""What the page shows: the executor's statistics, latencies of late, and samples over time."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ..client import Client
from ..operation.request_record import RequestRecord
from ..operation.stats_probe import StatsProbe
from ..operation.traffic import Traffic

_PATIENCE_SECONDS = 2.0
_WINDOW_SECONDS = 300.0  # of the percentiles
_SAMPLE_SECONDS = 0.8  # between two samples, at least
_SAMPLES = 300
_PERCENTILES = (50, 90, 99)
_COUNTED = ("steps", "prompt_tokens", "cached_tokens", "generation_tokens", "busy_seconds")


class PageState:
    """Samples the executor when somebody looks, and only then; used from worker threads."""

    def __init__(
        self, client: Client, probe: StatsProbe, traffic: Traffic, model_name: str
    ) -> None:
        self._client = client
        self._probe = probe
        self._traffic = traffic
        self._model_name = model_name
        self._started = time.time()
        self._lock = threading.Lock()
        self._samples: deque[dict[str, Any]] = deque(maxlen=_SAMPLES)
        self._latest: dict[str, Any] = {}  # shown on while an answer is late
        self._before: tuple[float, dict[str, float]] | None = None  # time and counters

    def state(self) -> dict[str, Any]:
        """Return everything the page shows, as JSON's types; blocks for a moment."""
        stats = self._probe.ask(_PATIENCE_SECONDS) if self._client.alive else None
        with self._lock:
            if stats is not None:
                self._latest = stats
                self._sample(stats)
            latest, samples = self._latest, list(self._samples)
        return {
            "model": self._model_name,
            "engine": self._engine(),
            "uptime_seconds": round(time.time() - self._started, 1),
            "status": self._status(stats),
            "in_flight": self._traffic.in_flight,
            "now": _gauges(latest) if latest else {},
            "totals": {name: latest.get(name, 0) for name in _COUNTED},
            "ended": latest.get("ended", {}),
            "rejected": latest.get("rejected_by_cause", {}),
            "blocks": latest.get("block_states", ""),
            "samples": samples,
            "latency": _latencies(self._traffic.answers(_WINDOW_SECONDS)),
            "errors": [_error(record) for record in self._traffic.errors()],
        }

    def _engine(self) -> dict[str, Any]:
        info = self._client.info
        limits = {
            "max_seq_len": info.max_seq_len,
            "max_batch_size": info.max_batch_size,
            "max_num_tokens": info.max_num_tokens,
            "num_blocks": info.num_blocks,
            "block_tokens": info.block_tokens,
            "vocab_size": info.vocab_size,
            "open_ms": round(info.open_seconds * 1e3, 1),
        }
        return {**info.engine, **limits}

    def _status(self, stats: Mapping[str, Any] | None) -> str:
        if not self._client.alive:
            return "dead"
        if self._probe.hung or stats is None:
            return "hung" if self._probe.hung else "slow"
        return "draining" if self._traffic.draining else "ready"

    def _sample(self, stats: Mapping[str, Any]) -> None:
        """Add a sample: gauges now, and rates since the sample before."""
        now = time.time()
        counters = {name: float(stats.get(name, 0)) for name in _COUNTED}
        if self._before is None:
            self._before = (now, counters)
            return
        then, before = self._before
        elapsed = now - then
        if elapsed < _SAMPLE_SECONDS:
            return
        self._before = (now, counters)
        rates = {name: (counters[name] - before[name]) / elapsed for name in _COUNTED}
        step_seconds = rates["busy_seconds"] / rates["steps"] if rates["steps"] else 0.0
        gauges = _gauges(stats)
        self._samples.append(
            {
                "time": round(now, 2),
                "generation": gauges["running"] - gauges["context"],
                "context": gauges["context"],
                "waiting": gauges["waiting"],
                "used_blocks": gauges["used_blocks"],
                "prompt_rate": round(rates["prompt_tokens"], 1),
                "generation_rate": round(rates["generation_tokens"], 1),
                "busy": round(min(rates["busy_seconds"], 1.0), 3),
                "step_ms": round(step_seconds * 1e3, 2),
            }
        )


def percentile(values: Sequence[float], rank: float) -> float:
    """Return a percentile (nearest rank) of sorted values; NaN of none."""
    if not values:
        return math.nan
    return values[max(0, math.ceil(rank / 100 * len(values)) - 1)]


def _gauges(stats: Mapping[str, Any]) -> dict[str, Any]:
    names = ("running", "waiting", "used_blocks", "free_blocks", "num_blocks", "kv_tokens")
    return {name: stats[name] for name in names} | {"context": stats.get("context", 0)}


def _latencies(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Return percentiles in milliseconds over the answers of the window."""
    columns = {
        "ttft": [record.first_token_seconds for record in records],
        "tpot": [record.per_token_seconds for record in records],
        "e2e": [record.seconds for record in records],
        "queue": [record.queue_seconds for record in records],
    }
    result: dict[str, Any] = {"answers": len(records), "window_seconds": _WINDOW_SECONDS}
    for name, values in columns.items():
        known = sorted(value for value in values if value is not None)
        result[name] = (
            {f"p{rank}": round(percentile(known, rank) * 1e3, 2) for rank in _PERCENTILES}
            if known
            else None
        )
    return result


def _error(record: RequestRecord) -> dict[str, Any]:
    return {
        "time": round(record.arrived, 2),
        "path": record.path,
        "status": record.status,
        "error": record.error,
        "request_id": record.request_id,
    }
