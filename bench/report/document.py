"""Generates docs/benchmarks.md from result files, deterministically and without measuring."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.report import tables
from bench.report.plot import plot
from bench.results import RESULTS, load

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENT, PICTURE = DOCS / "benchmarks.md", DOCS / "benchmarks.svg"

Result = Mapping[str, Any]

INTRODUCTION = """# Benchmarks

Generated from `bench/results` by `python -m bench.peers report`; `make bench-peers` repeats the measurements.

All engines get the same weights (random, in the shape of a known model) and the same prompts: 128 token ids each, different in every round.
They decode 64 tokens per prompt greedily, and the harness counts the tokens. Within a round the engines take turns, one running at a time,
each with all cores. A figure is the median over the rounds, with the minimum and maximum in parentheses. **ours ÷ theirs** is the median of
the per-round ratios: above 1, this project is faster (for times: below 1). An engine that needs more than a minute for a batch runs it
once. Each row names the number format that the engine computes in; the last section lists the settings.
"""
NO_PEERS = "No results yet: `make bench-peers` writes them."


def write_document(results: Path = RESULTS, document: Path = DOCUMENT, picture: Path = PICTURE) -> None:
    """Write the document and its picture."""
    parts = load(results)
    document.write_text(render(parts))
    picture.write_text(plot(parts))


def render(parts: Mapping[str, Result]) -> str:
    """Return the document's text."""
    if not parts:
        return f"{INTRODUCTION}\n{NO_PEERS}\n"
    sections = [INTRODUCTION, f"![Tokens per second by engine]({PICTURE.name})\n", _machines(parts)]
    for name, draw in _SECTIONS.items():
        if name in parts:
            sections.append(_section(name, parts[name], draw))
    sections.append(_settings(parts))
    return "\n".join(sections)


def _machines(parts: Mapping[str, Result]) -> str:
    """One line per machine used."""
    groups: dict[str, list[str]] = {}
    for name, part in parts.items():
        what = part["machine"]
        line = f"{what['cpu']}, {what['cores']} cores, {what['memory_gib']} GiB; has {', '.join(what['has']) or 'none'}"
        groups.setdefault(f"{line}; lacks {', '.join(what['lacks']) or 'none'}", []).append(f"{name} {what['date']}")
    return "".join(f"Measured on: {line} ({'; '.join(names)} UTC).\n" for line, names in groups.items())


def _section(name: str, part: Result, draw: Callable[[Result], str]) -> str:
    lines = [f"## {part.get('title', name)}\n"]
    if not part["complete"]:
        lines.append("*Broken off: some rounds are missing.*\n")
    lines.append(draw(part))
    lines += [f"* {engine} could not run: {reason}\n" for engine, reason in part.get("failed", {}).items()]
    return "\n".join(lines)


def _settings(parts: Mapping[str, Result]) -> str:
    """Versions and settings of all engines, without duplicates."""
    lines: dict[str, None] = {}
    for part in parts.values():
        for name, about in part.get("engines", {}).items():
            flags = "; ".join(f"{flag} {_plain(value)}" for flag, value in about["flags"].items())
            cache = f", cache {about['cache']}" if "cache" in about else ""
            lines[f"* **{name}** {about['version']}, {about['precision']}{cache}: {flags}\n"] = None
    return "## Versions and settings\n\n" + "".join(lines)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_SECTIONS: dict[str, Callable[[Result], str]] = {
    "offline-135m": tables.engines,
    "offline-500m": tables.engines,
    "context": tables.engines,
    "neighbour": tables.engines,
    "http": tables.servers,
    "arrivals": tables.arrivals,
    "start": tables.start,
    "null": tables.null,
}
