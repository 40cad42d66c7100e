"""A report as a small badge."""

from __future__ import annotations

from html import escape
from typing import Any

_LABEL = "tgi-core"
_CHARACTER, _MARGIN, _HEIGHT = 7, 10, 20
"""Pixels; the first is the approximate width of a character."""


def highest(document: dict[str, Any]) -> str:
    """Return the highest granted level, or "" if none is granted."""
    found = ""
    for level, outcome in document["levels"].items():
        if outcome != "granted":
            break
        found = level
    return found


def badge(document: dict[str, Any]) -> str:
    """Render an SVG with the highest level, and whether it was reached on real hardware."""
    level = highest(document)
    text = f"{level} granted" if level else "not granted"
    if level and not document["backend"]["verified_on_hardware"]:
        text += ", no hardware"
    colour = {"": "#b33", "L0": "#a70", "L1": "#a70"}.get(level, "#283")
    left, right = (len(each) * _CHARACTER + 2 * _MARGIN for each in (_LABEL, text))
    title = escape(f"{_LABEL}: {text}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img" aria-label="{title}">'
        f"<title>{title}</title>"
        f'<rect width="{left + right}" height="{_HEIGHT}" rx="3" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="{_HEIGHT}" rx="3" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="14">{_LABEL}</text><text x="{left + right / 2}" y="14">{escape(text)}</text></g></svg>\n'
    )
