"""Prometheus text exposition, with counters named exactly as in TGI.

The client library's writer forces the suffix `_total` and adds `_created` series; dashboards for TGI expect neither.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def expose(registry: CollectorRegistry) -> str:
    """Render all metrics of a registry. Names, help texts and label values are constants of this project and need no escaping."""
    return "".join(line for metric in registry.collect() for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.documentation}\n# TYPE {metric.name} {metric.type}\n"
    for sample in metric.samples:
        if sample.name.endswith("_created"):
            continue
        name = metric.name if metric.type == "counter" else sample.name
        labels = ",".join([f'{key}="{value}"' for key, value in sample.labels.items()])
        value = str(int(sample.value)) if sample.value.is_integer() else str(sample.value)
        yield f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
