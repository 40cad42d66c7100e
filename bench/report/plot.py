"""The picture: one panel per measurement and batch size with its own scale, one bar per engine. Formats other than bfloat16 are
labelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

from bench.report.figures import chosen, figure, number, values

PANELS = (
    ("offline-135m", "batch", "decode", "SmolLM2-135M's shape, decode"),
    ("offline-500m", "batch", "decode", "Qwen2.5-0.5B's shape, decode"),
    ("http", "clients", "rate", "servers, streaming"),
)
WIDTH, LEFT, BAR, GAP = 290, 128, 14, 6
STYLE = """text { font: 11px system-ui, sans-serif; fill: #57606a }
.title { font-weight: 600 }
.ours { fill: #2f81f7 }
.other { fill: #9aa4af }
@media (prefers-color-scheme: dark) { text { fill: #b1bac4 } .other { fill: #6e7681 } }"""


def plot(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Render an SVG document for light and dark pages."""
    shown = [panel for panel in PANELS if panel[0] in parts and parts[panel[0]]["rows"]]
    body: list[str] = []
    top, right = 0, WIDTH
    for name, axis, column, title in shown:
        rows = parts[name]["rows"]
        height = 0
        for place, size in enumerate(values(rows, axis)):
            left = place * (WIDTH + LEFT)
            drawn = list(_panel(parts[name], chosen(rows, **{axis: size}), column, f"{title}, {axis} {size}", left, top))
            height = max(height, 26 + (len(drawn) - 1) // 3 * (BAR + GAP))
            right = max(right, left + WIDTH + LEFT)
            body += drawn
        top += height + 14
    what = "Tokens per second by engine, in panels by model and batch size"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right} {max(top, 1)}" role="img" aria-label="{what}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>"]) + "\n"


def _panel(part: Mapping[str, Any], rows: list[Mapping[str, Any]], column: str, title: str, left: int, top: int) -> Iterator[str]:
    figures = {engine: figure(chosen(rows, engine=engine), column) for engine in values(rows, "engine")}
    greatest = max(item.middle for item in figures.values())
    yield f'<text class="title" x="{left}" y="{top + 13}">{escape(title)}, tokens/s</text>'
    for place, (engine, item) in enumerate(figures.items()):
        y, length = top + 22 + place * (BAR + GAP), (WIDTH - 110) * item.middle / greatest
        kind = "ours" if engine == "ours" else "other"
        yield f'<text x="{left + LEFT - 8}" y="{y + 11}" text-anchor="end">{escape(engine)}</text>'
        yield f'<rect class="{kind}" x="{left + LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>'
        precision = part["engines"][engine]["precision"].partition(",")[0]
        what = number(item.middle) if precision == "bfloat16" else f"{number(item.middle)} ({precision})"
        yield f'<text x="{left + LEFT + length + 5:.1f}" y="{y + 11}">{escape(what)}</text>'
