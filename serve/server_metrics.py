"""What the HTTP process knows of itself and of the engine it serves, at the time of a scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from .client import Client
from .operation.traffic import Traffic


class ServerCollector(Collector):
    """Gauges of the server, and facts that do not change."""

    def __init__(self, client: Client, traffic: Traffic, labels: Mapping[str, str]) -> None:
        self._client = client
        self._traffic = traffic
        self._labels = dict(labels)

    def describe(self) -> list[Metric]:
        """Return nothing: the families are made at each scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return all families."""
        info = self._client.info
        gauges = {
            "http_requests_in_flight": ("Requests being answered.", self._traffic.in_flight),
            "draining": ("Whether the server takes no new work.", int(self._traffic.draining)),
            "engine_open_seconds": ("Time to open engine and session.", info.open_seconds),
            "max_batch_size": ("Sequences in a step, at most.", info.max_batch_size),
            "max_num_tokens": ("Tokens in a step, at most.", info.max_num_tokens),
            "max_seq_len": ("Tokens of a sequence, at most.", info.max_seq_len),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"enginewright_{name}", text, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
        facts = {name: str(value) for name, value in info.engine.items() if _plain(value)}
        engine = InfoMetricFamily("enginewright_engine", "What the engine is.")
        engine.add_metric([], self._labels | facts)
        yield engine
        cache = {"block_size": str(info.block_tokens), "num_gpu_blocks": str(info.num_blocks)}
        family = InfoMetricFamily("vllm:cache_config", "The KV cache.")
        family.add_metric([], self._labels | cache)
        yield family


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float)
