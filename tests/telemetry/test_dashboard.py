"""The Grafana dashboard, against a scrape of a server that has been used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.server import Series, instance, scrape
from tgi_core.backend import OutOfMemory
from tgi_core.telemetry.catalog import METRICS

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "tgi-core.json"
NAME = re.compile(r"\b(tgi_\w+|vllm:\w+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\bby \(([^)]*)\)")


@pytest.fixture(scope="module")
def dashboard() -> Any:
    """The file."""
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def series() -> Iterator[Series]:
    """What a server exports after an answer and a fault."""
    with instance(session={"faults": {1: OutOfMemory("scripted")}, "adapters": ("poet",)}) as served:
        for path in ("/generate", "/generate_stream"):
            served.client.post(path, json={"inputs": "Hi", "parameters": {"max_new_tokens": 3}})
        alone = scrape(served)
    with instance(replicas=2) as several:
        yield scrape(several) | alone


def queries(dashboard: Any) -> Iterator[str]:
    """Every expression: those of the panels, and those that fill the variables."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_queries_name_exported_series(dashboard: Any, series: Series) -> None:
    """Every series that a query names is in the scrape, with the labels by which it is selected and grouped."""
    exported = dict(iter(series))
    asked = 0
    for query in queries(dashboard):
        for name, selector in NAME.findall(query):
            asked += 1
            assert name in exported, query
            known = {label for label, _ in exported[name]} | {"job", "instance"}  # these two are Prometheus' own
            wanted = set(re.findall(r"(\w+)=", selector))
            if not query.startswith("label_values"):
                wanted |= {label.strip() for group in GROUPING.findall(query) for label in group.split(",")}
            assert wanted <= known, query
    assert asked > 50


def test_everything_is_shown(dashboard: Any) -> None:
    """Every metric of the catalogue is in some query."""
    shown = {name for query in queries(dashboard) for name, _ in NAME.findall(query)}
    names = {re.sub("_(bucket|sum|count)$", "", name) for name in shown} | shown
    assert [metric.name for metric in METRICS if metric.name not in names] == []


def test_form(dashboard: Any) -> None:
    """What Grafana 10 and later need to import it: a schema version, unique panel ids, panels that do not overlap, a data source
    that is chosen, and a legend for each target of a graph."""
    assert dashboard["schemaVersion"] >= 38
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [cell for panel in dashboard["panels"] for cell in _cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells)
    for panel in dashboard["panels"]:
        assert panel["title"]
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["legendFormat"] or panel["type"] == "stat"


def _cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        assert x < 24
        yield from ((x, y) for y in range(place["y"], place["y"] + place["h"]))
