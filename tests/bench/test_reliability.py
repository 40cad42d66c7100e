"""The page of promises says what the results say."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.report.reliability import DOCUMENT, PARTS, PICTURE, plot, render
from bench.results import RESULTS, load


def test_the_page_is_made_of_the_results() -> None:
    """docs/reliability.md and its picture are what `python -m bench.report.reliability` would write."""
    parts = load(RESULTS / "reliability")
    assert DOCUMENT.read_text() == render(parts)
    assert PICTURE.read_text() == plot(parts["overload"])


def test_every_line_has_as_many_cells() -> None:
    """Tables are whole: each of their lines has as many cells as the first."""
    cells = 0
    for line in DOCUMENT.read_text().splitlines():
        cells = (cells or line.count("|")) if line.startswith("|") else 0
        assert line.count("|") == cells, line


def test_the_picture_is_one() -> None:
    """It is well-formed, has a bar for each load, and nothing lies outside."""
    picture = ElementTree.fromstring(PICTURE.read_text())  # noqa: S314  our own
    width = float(picture.attrib["viewBox"].split()[2])
    bars = picture.findall("{*}rect")
    assert len(bars) >= len(PARTS)
    assert all(float(bar.attrib["x"]) >= 0 and float(bar.attrib["x"]) + float(bar.attrib["width"]) <= width for bar in bars)
