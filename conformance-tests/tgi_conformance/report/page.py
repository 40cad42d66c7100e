"""A report as one self-contained HTML page: the matrix of clauses, then each clause."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tgi_conformance.verdict import Level, Verdict

MARKS = {
    Verdict.PASS.value: "✓",
    Verdict.FAIL.value: "✕",
    Verdict.KNOWN.value: "!",
    Verdict.UNSUPPORTED.value: "–",
    Verdict.INCONCLUSIVE.value: "?",
    Verdict.ERROR.value: "E",
    Verdict.NOT_RUN.value: "·",
}
"""Symbols for verdicts, so that colour alone never carries the meaning."""


def page(document: dict[str, Any]) -> str:
    """Render a report as HTML, escaping everything that comes from the backend."""
    environment = Environment(
        loader=PackageLoader("tgi_conformance.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    levels = [_level(level, document) for level in Level]
    counts = {verdict.value: sum(entry["verdict"] == verdict.value for entry in document["results"]) for verdict in Verdict}
    return environment.get_template("page.html.j2").render(report=document, levels=levels, counts=counts, marks=MARKS)


def _level(level: Level, document: dict[str, Any]) -> dict[str, Any]:
    entries = [entry for entry in document["results"] if entry["level"] == level.value]
    topics = [(topic, list(group)) for topic, group in groupby(sorted(entries, key=_topic), key=_topic)]
    order = list(dict.fromkeys(map(_topic, entries)))
    topics.sort(key=lambda item: order.index(item[0]))
    return {"id": level.value, "title": level.title, "outcome": document["levels"].get(level.value, "measured"), "topics": topics}


def _topic(entry: dict[str, Any]) -> str:
    return str(entry["id"]).partition(".")[0]
