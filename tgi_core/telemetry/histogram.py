"""A histogram metric with cheap observations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString


class Series:
    """Observations for one label value."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, name: str, labels: dict[str, str]) -> Iterator[Sample]:
        """Yield the cumulative buckets, the count and the sum."""
        up_to = list(accumulate(self._counts))
        for bound, count in zip((*self._bounds, float("inf")), up_to, strict=True):
            le: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
            yield Sample(f"{name}_bucket", {**labels, "le": le}, float(count))
        yield Sample(f"{name}_count", labels, float(up_to[-1]))
        yield Sample(f"{name}_sum", labels, self._sum)


class FastHistogram(Collector):
    """A histogram with at most one label. The Prometheus client's histogram takes locks and searches buckets linearly, which is too
    slow for every token and step. This one is used only from the event loop, which also serves scrapes."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], label: str = "", values: Iterable[str] = ()) -> None:
        self._name, self._text, self._label, self._bounds = name, text, label, bounds
        self._series = {value: Series(bounds) for value in (values if label else ("",))}

    def labels(self, value: str) -> Series:
        """Return the series of a label value."""
        if value not in self._series:
            self._series[value] = Series(self._bounds)
        return self._series[value]

    def observe(self, value: float) -> None:
        """Count a value in a histogram without labels."""
        self._series[""].observe(value)

    def collect(self) -> Iterable[Metric]:
        """Return all series."""
        metric = Metric(self._name, self._text, "histogram")
        for value, series in self._series.items():
            metric.samples += series.samples(self._name, {self._label: value} if self._label else {})
        return [metric]
