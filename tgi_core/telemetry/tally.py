"""A histogram that costs little to add to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Tally(Collector):
    """Like the Prometheus library's, which takes locks and walks along the buckets: too dear for every token. This one belongs to the
    event loop, where the scrape is made too."""

    def __init__(self, name: str, text: str, buckets: tuple[float, ...]) -> None:
        self._name, self._text = name, text
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        """The buckets, each with all that are below it, the count and the sum."""
        metric = Metric(self._name, self._text, "histogram")
        up_to = list(accumulate(self._counts))
        for bound, count in zip((*self._bounds, float("inf")), up_to, strict=True):
            le = floatToGoString(bound)  # type: ignore[no-untyped-call]
            metric.add_sample(f"{self._name}_bucket", {"le": le}, float(count))
        metric.add_sample(f"{self._name}_count", {}, float(up_to[-1]))
        metric.add_sample(f"{self._name}_sum", {}, self._sum)
        return [metric]
