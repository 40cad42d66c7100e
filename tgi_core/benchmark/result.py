"""Results of `tgi bench` as JSON documents, and as tables."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tgi_core import __version__
from tgi_core.benchmark.endpoint import Endpoint
from tgi_core.benchmark.latencies import METRICS, PERCENTILES
from tgi_core.errors import StartupError

FORMAT = 1
"""Version of the documents; a minor change only adds fields."""

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text below headings."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def document(kind: str, endpoint: Endpoint, options: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    """A result: what was measured, of which server, from which machine. `kind` is load or batch."""
    return {
        "kind": kind,
        "format": FORMAT,
        "tgi_core": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "url": endpoint.url,
        "api": endpoint.api,
        "model": endpoint.model,
        "client": {"platform": platform.platform(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
        "options": dict(options),
        **figures,
    }


def read_result(path: Path) -> dict[str, Any]:
    """A result from its file. Raises StartupError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StartupError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("kind") not in ("load", "batch") or found.get("format") != FORMAT:
        raise StartupError(f"{path}: not a result of tgi bench; write one with `tgi bench … --save {path}`")
    return found


def tables(result: Result) -> list[Table]:
    """What a result says."""
    return _load_tables(result["load"]) if result["kind"] == "load" else [_batch_table(result["rows"])]


def _load_tables(load: Result) -> list[Table]:
    answered = f"{load['answered']:,} of {load['requests']:,}"
    rows = [
        ("requests answered", answered),
        ("seconds", number(load["seconds"])),
        ("requests/s", number(load["requests_per_s"])),
        ("prompt tokens/s", number(load["prompt_tokens_per_s"])),
        ("tokens/s", number(load["tokens_per_s"])),
    ]
    if goodput := load.get("goodput"):
        limits = ", ".join(f"{name} ≤ {number(limit)} ms" for name, limit in goodput["objectives_ms"].items())
        rows.append((f"goodput, requests/s ({limits})", f"{number(goodput['requests_per_s'])} ({100 * goodput['share']:.1f} %)"))
    rows += [(f"failed: {reason}", str(count)) for reason, count in load["failures"].items()]
    rows.append(("load generator, cores", f"{load['client_share']:.2f}"))
    columns = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")
    latencies = [
        (f"{title} ({name})", *(number(load[name][column]) for column in columns))
        for name, title in METRICS.items()
        if name in load
    ]
    return [Table("load", ("", ""), rows), Table("latency, ms", ("metric", *columns), latencies)]


BATCH_COLUMNS = {
    "prefill": "prefill, tokens/s",
    "decode": "decode, tokens/s",
    "rate": "both, tokens/s",
    "first_p50_ms": "first token p50, ms",
    "first_p99_ms": "p99",
    "gap_p50_ms": "next token p50, ms",
    "gap_p99_ms": "p99",
}


def _batch_table(rows: Sequence[Result]) -> Table:
    return Table(
        "by batch size, median of rounds", ("batch", *BATCH_COLUMNS.values()), [batch_row(rows, size) for size in sizes(rows)]
    )


def batch_row(rows: Sequence[Result], size: int) -> tuple[str, ...]:
    """Medians of a batch size."""
    return str(size), *(number(middle(rows, size, column)) for column in BATCH_COLUMNS)


def sizes(rows: Sequence[Result]) -> list[int]:
    """Batch sizes, in order of appearance."""
    return list(dict.fromkeys(row["batch"] for row in rows))


def values(rows: Sequence[Result], size: int, column: str) -> list[float]:
    """A column's values of all rounds of a batch size."""
    return [float(row[column]) for row in rows if row["batch"] == size]


def middle(rows: Sequence[Result], size: int, column: str) -> float:
    """Their median."""
    return median(values(rows, size, column))


def number(value: float) -> str:
    """Format with three significant digits, or all digits before the decimal point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
