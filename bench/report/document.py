"""Generates docs/benchmarks.md and the README's table from result files, deterministically and without measuring."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.report import tables
from bench.report.plot import plot
from bench.results import PEERS, load_peers

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
README = DOCUMENT.parents[1] / "README.md"

Result = Mapping[str, Any]

INTRODUCTION = """# Benchmarks

Generated from `bench/results/peers` by `python -m bench.peers report`; `make bench-peers` repeats the measurements.

All engines get the same weights (random, in the shape of a known model) and the same prompts: 128 token ids each, different in every round.
They decode 64 tokens per prompt greedily, and the harness counts the tokens. Within a round the engines take turns, one running at a time,
each with all cores. A figure is the median over the rounds, with the minimum and maximum in parentheses. **ours ÷ theirs** is the median of
the per-round ratios: above 1, this project is faster (for times: below 1). An engine that needs more than a minute for a batch runs it
once. Each row names the number format that the engine computes in; each processor's last section lists the settings.
"""
NO_PEERS = "No results yet: `make bench-peers` writes them."


def write_document(results: Path = PEERS, document: Path = DOCUMENT, readme: Path = README) -> None:
    """Write the document and a picture per kind of processor beside it, and update the README's table."""
    chips = load_peers(results)
    document.write_text(render(chips))
    readme.write_text(_TABLE.sub(lambda _: summary(chips), readme.read_text()))
    for name, parts in chips.items():
        (document.parent / picture(name)).write_text(plot(parts))


def picture(chip: str) -> str:
    """File name of a processor's picture."""
    return f"benchmarks-{chip}.svg"


def render(chips: Mapping[str, Mapping[str, Result]]) -> str:
    """Return the document's text from results by kind of processor and part."""
    if not chips:
        return f"{INTRODUCTION}\n{NO_PEERS}\n"
    return "\n".join([INTRODUCTION, summary(chips), *(_chip(name, parts) for name, parts in chips.items())])


def summary(chips: Mapping[str, Mapping[str, Result]]) -> str:
    """Our speed divided by that of the fastest other engine: one line per processor and model."""
    sizes = "1 / 8 / 32"
    heads = ["SmolLM2-135M's shape", f"decode, batch {sizes}", f"prefill, batch {sizes}", f"HTTP, {sizes} clients"]
    lines = ([_title(parts), *tables.against_best(parts)] for parts in chips.values())
    return f"Our tokens per second, divided by those of the fastest other engine:\n\n{tables.table(heads, lines)}"


def _chip(name: str, parts: Mapping[str, Result]) -> str:
    """Everything measured on one kind of processor."""
    sections = [f"## {_title(parts)}\n", f"![Tokens per second by engine]({picture(name)})\n", _machines(parts)]
    sections += [_section(part, parts[part], draw) for part, draw in _SECTIONS.items() if part in parts]
    return "\n".join([*sections, _settings(parts)])


def _title(parts: Mapping[str, Result]) -> str:
    return str(next(iter(parts.values()))["machine"]["chip"])


def _machines(parts: Mapping[str, Result]) -> str:
    """One line per machine used."""
    groups: dict[str, list[str]] = {}
    for name, part in parts.items():
        what = part["machine"]
        line = f"{what['cpu']}, {what['cores']} cores, {what['memory_gib']} GiB; has {', '.join(what['has']) or 'none'}"
        groups.setdefault(f"{line}; lacks {', '.join(what['lacks']) or 'none'}", []).append(f"{name} {what['date']}")
    return "".join(f"Measured on: {line} ({'; '.join(names)} UTC).\n" for line, names in groups.items())


def _section(name: str, part: Result, draw: Callable[[Result], str]) -> str:
    lines = [f"### {part.get('title', name)}\n"]
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
    return "### Versions and settings\n\n" + "".join(lines)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_TABLE = re.compile(r"Our tokens per second, divided.*?\n\n(\|.*\n)+")
_SECTIONS: dict[str, Callable[[Result], str]] = {
    "offline-135m": tables.engines,
    "offline-500m": tables.engines,
    "int8-135m": tables.engines,
    "int4-135m": tables.engines,
    "int8-500m": tables.engines,
    "int4-500m": tables.engines,
    "context": tables.engines,
    "neighbour": tables.engines,
    "http": tables.servers,
    "drafts": tables.drafts,
    "arrivals": tables.arrivals,
    "start": tables.start,
    "null": tables.null,
}
