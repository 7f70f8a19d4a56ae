"""Counters and histograms that one thread writes: cheap enough for every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class LoopCounter(Collector):
    """A counter without a lock; a scrape may read it from another thread."""

    def __init__(self, name: str, text: str, labels: Mapping[str, str]) -> None:
        self._name = name
        self._text = text
        self._labels = dict(labels)
        self._value = 0

    def inc(self, amount: int = 1) -> None:
        """Add to the counter."""
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        """Return the counter as it stands."""
        family = CounterMetricFamily(self._name, self._text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), self._value)
        yield family


class LoopHistogram(Collector):
    """A histogram without a lock; a scrape may read it from another thread."""

    def __init__(
        self, name: str, text: str, labels: Mapping[str, str], bounds: Sequence[float]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = dict(labels)
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)  # the last is of values above all bounds
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """Return the histogram as it stands."""
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family.add_metric(list(self._labels.values()), buckets, sum_value=self._sum)
        yield family
