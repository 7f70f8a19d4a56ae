"""What `/metrics` tells: our own names, and the vLLM names that dashboards already use."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from .client import Client
from .executor_metrics import ExecutorCollector
from .loop_metrics import LoopCounter, LoopHistogram
from .operation.stats_probe import StatsProbe
from .operation.traffic import Traffic
from .request_observer import RequestObserver
from .server_metrics import ServerCollector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_LABELS = ("model_name", "engine")
_REASONS = {"cancelled": "abort"}  # vLLM's word for it


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(
        self, client: Client, model_name: str, probe: StatsProbe, traffic: Traffic
    ) -> None:
        self._labels = (model_name, "0")
        self._facts: dict[str, str] = dict(zip(_LABELS, self._labels, strict=True))
        self._registry = CollectorRegistry()
        self._aliases = _Aliases()
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _SECONDS
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a choice.", _SECONDS
        )
        self.end_to_end = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the end of a choice.", _SECONDS
        )
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "From arrival in the executor to the start.", _SECONDS
        )
        self.prefill_time = self._histogram(
            "request_prefill_time_seconds", "From the start to the first token.", _SECONDS
        )
        self.decode_time = self._histogram(
            "request_decode_time_seconds", "From the first token to the last.", _SECONDS
        )
        self.per_output_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time of a token after the first.",
            _SECONDS,
        )
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Generated tokens of a choice.", _TOKENS
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens taken.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._ends = Counter(
            "enginewright_request_success",
            "Choices that ended, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._aliases.add(self._ends)
        self._refusals = Counter(
            "enginewright_request_error",
            "Requests answered with an error, by status and code.",
            (*_LABELS, "http_code", "code"),
            registry=self._registry,
        )
        self._registry.register(self._aliases)
        self._registry.register(ExecutorCollector(client, probe, self._facts))
        self._registry.register(ServerCollector(client, traffic, self._facts))

    def observe(self, prompt_tokens: int) -> RequestObserver:
        """Return the observer of a request that arrives now."""
        return RequestObserver(self, prompt_tokens)

    def end(self, reason: str) -> None:
        """Count a choice that ended."""
        self._ends.labels(*self._labels, _REASONS.get(reason, reason)).inc()

    def refuse(self, status: int, code: str) -> None:
        """Count an error answer."""
        self._refusals.labels(*self._labels, str(status), code).inc()

    def render(self) -> bytes:
        """Return the exposition text; asks the executor, so it may block for a moment."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> LoopHistogram:
        histogram = LoopHistogram(f"enginewright_{name}", text, self._facts, buckets)
        self._registry.register(histogram)
        self._aliases.add(histogram)
        return histogram

    def _counter(self, name: str, text: str) -> LoopCounter:
        counter = LoopCounter(f"enginewright_{name}", text, self._facts)
        self._registry.register(counter)
        self._aliases.add(counter)
        return counter


class _Aliases(Collector):
    """Metrics again, under vLLM's names."""

    def __init__(self) -> None:
        self._metrics: list[Collector] = []

    def add(self, metric: Collector) -> None:
        """Show one more metric under its other name."""
        self._metrics.append(metric)

    def collect(self) -> Iterator[Metric]:
        """Return the families under their other names."""
        for metric in self._metrics:
            for family in metric.collect():
                yield from _renamed(family)


def _renamed(family: Metric) -> Iterator[Metric]:
    name = family.name.replace("enginewright_", "vllm:", 1)
    copy = Metric(name, family.documentation, family.type)
    copy.samples = [
        sample._replace(name=sample.name.replace("enginewright_", "vllm:", 1))
        for sample in family.samples
    ]
    yield copy
