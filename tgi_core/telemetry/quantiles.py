"""A summary metric with quantiles, which the Python Prometheus client lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

QUANTILES = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Quantiles that TGI exports."""


class Summary(Collector):
    """Exact quantiles of all observations. Values are small integers, so a count per value is enough."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._counts: Counter[int] = Counter()

    def observe(self, value: int) -> None:
        """Count a value. Call only from the event loop, which also serves scrapes."""
        self._counts[value] += 1

    def collect(self) -> Iterable[Metric]:
        """Return quantiles, sum and count. Without observations, quantiles are 0, as in TGI."""
        metric = Metric(self._name, self._text, "summary")
        for quantile, value in zip(QUANTILES, self._quantiles(), strict=True):
            metric.add_sample(self._name, {"quantile": f"{quantile:g}"}, value)
        metric.add_sample(f"{self._name}_sum", {}, float(sum(value * count for value, count in self._counts.items())))
        metric.add_sample(f"{self._name}_count", {}, float(self._counts.total()))
        return [metric]

    def _quantiles(self) -> Iterator[float]:
        """Yield for each quantile the smallest value that at least this share of observations does not exceed."""
        values = sorted(self._counts)
        up_to = list(accumulate(self._counts[value] for value in values))
        for quantile in QUANTILES:
            rank = quantile * (up_to[-1] if up_to else 0)
            yield float(next((value for value, count in zip(values, up_to, strict=True) if count >= rank), 0))
