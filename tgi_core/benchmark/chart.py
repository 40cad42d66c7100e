"""Charts of results: SVG for light and dark pages, and an HTML page with the figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tgi_core.benchmark.latencies import METRICS
from tgi_core.benchmark.result import Result, Table, middle, number, sizes, tables

_BY_SIZE = {
    "prefill": "prefill, tokens/s",
    "decode": "decode, tokens/s",
    "first_p50_ms": "first token, ms",
    "gap_p50_ms": "next token, ms",
}
"""Charts of a batch result, by column."""

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, LEFT, TOP, BELOW = 420, 220, 62, 30, 40
_COLOURS = ("#2f81f7", "#d29922", "#3fb950", "#f85149")
STYLE = """text { font: 11px system-ui, sans-serif; fill: #57606a }
.title { font-weight: 600 }
.grid { stroke: #d0d7de; stroke-width: 1 }
.line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #b1bac4 } .grid { stroke: #30363d } }"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 15px system-ui, sans-serif }}
body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
caption {{ text-align: left; font-weight: 600; padding: .3rem 0 }}
th, td {{ padding: .2rem .8rem .2rem 0; text-align: right; font-variant-numeric: tabular-nums }}
th:first-child, td:first-child {{ text-align: left }}
tr + tr td {{ border-top: 1px solid #8884 }}
svg {{ max-width: 100% }}
</style></head><body><h1>{title}</h1><p>{about}</p>
{chart}
{tables}
</body></html>
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: curves by name."""

    title: str
    axis: str
    curves: Mapping[str, Points]


def svg(results: Mapping[str, Result]) -> str:
    """An SVG document with a curve per result, by name. The results are of one kind."""
    shown = panels(results)
    body: list[str] = []
    for place, panel in enumerate(shown):
        body += _panel(panel, place % 2 * (WIDTH + 20), place // 2 * (HEIGHT + 20))
    width, rows = 2 * WIDTH + 20 if len(shown) > 1 else WIDTH, -(-len(shown) // 2)
    names = list(results)
    height = rows * (HEIGHT + 20) + (20 if len(names) > 1 else 0)
    if len(names) > 1:
        body += _legend(names, height - 8)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="Benchmark results">'
    return "\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>"]) + "\n"


def html(results: Mapping[str, Result], found: Sequence[Table] = ()) -> str:
    """A page with the chart and tables, those of the results unless others are `found`."""
    shown = list(found) or [table for result in results.values() for table in tables(result)]
    about = "; ".join(f"{name}: {item['model']} at {item['url']}, {item['date']}" for name, item in results.items())
    parts = "\n".join(_table(table) for table in shown)
    return _PAGE.format(title="tgi bench", about=escape(about), chart=svg(results), tables=parts)


def panels(results: Mapping[str, Result]) -> list[Panel]:
    """Charts of results of one kind."""
    if next(iter(results.values()))["kind"] == "load":
        return [
            Panel(f"{title}, ms", "percentile", {name: _curve(item["load"][metric]["curve"]) for name, item in results.items()})
            for metric, title in METRICS.items()
            if all(metric in item["load"] for item in results.values())
        ]
    return [
        Panel(title, "batch size", {name: _by_size(item, column) for name, item in results.items()})
        for column, title in _BY_SIZE.items()
    ]


def _curve(values: Sequence[float]) -> Points:
    """Percentiles 0 to 99: the maximum would flatten the rest."""
    return [(float(percent), value) for percent, value in enumerate(values[:-1])]


def _by_size(result: Result, column: str) -> Points:
    return [(float(size), middle(result["rows"], size, column)) for size in sizes(result["rows"])]


def _panel(panel: Panel, left: float, top: float) -> Iterator[str]:
    points = [point for curve in panel.curves.values() for point in curve]
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    ticks = _ticks(max(y for _, y in points))
    inner, floor = WIDTH - LEFT - 10, top + HEIGHT - BELOW

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low) / (high - low) if high > low else 0.5
        return left + LEFT + inner * across, floor - (HEIGHT - BELOW - TOP) * y / ticks[-1]

    yield f'<text class="title" x="{left + LEFT}" y="{top + 14}">{escape(panel.title)}</text>'
    for tick in ticks:
        _, y = place(low, tick)
        yield f'<path class="grid" d="M{left + LEFT},{y:.1f}h{inner}"/>'
        yield f'<text x="{left + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick) if tick else 0}</text>'
    for x in sorted({low, high, *(x for x, _ in points if x % 25 == 0 or len(points) < 30)}):
        yield f'<text x="{place(x, 0)[0]:.1f}" y="{floor + 15:.1f}" text-anchor="middle">{x:g}</text>'
    yield f'<text x="{left + LEFT + inner / 2:.1f}" y="{floor + 31:.1f}" text-anchor="middle">{escape(panel.axis)}</text>'
    for colour, (name, curve) in zip(_cycle(), panel.curves.items(), strict=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve))
        yield f'<polyline class="line" stroke="{colour}" points="{path}"><title>{escape(name)}</title></polyline>'


def _legend(names: Sequence[str], y: float) -> Iterator[str]:
    left = float(LEFT)
    for colour, name in zip(_cycle(), names, strict=False):
        yield f'<rect x="{left}" y="{y - 9}" width="10" height="10" fill="{colour}"/><text x="{left + 15}" y="{y}">{escape(name)}</text>'
        left += 30 + 7 * len(name)


def _cycle() -> Iterator[str]:
    while True:
        yield from _COLOURS


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`, about five of them."""
    rough = max(most, 1e-9) / 4
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough)
    return [step * count for count in range(math.ceil(most / step) + 1)] if most > 0 else [0.0, 1.0]


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in table.heads)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table><caption>{escape(table.title)}</caption><tr>{head}</tr>{rows}</table>"
