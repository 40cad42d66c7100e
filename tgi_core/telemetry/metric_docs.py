"""Generates the table in docs/observability.md from the catalog: `python -m tgi_core.telemetry.metric_docs`, or with `--check` to
verify that it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from tgi_core.telemetry.catalog import METRICS, Metric

FILE = Path(__file__).parents[2] / "docs" / "observability.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"


def document(written: str) -> str:
    """Return the document with an updated table."""
    before, _, rest = written.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{_table()}{END}{after}"


def main() -> None:
    """Write or check the file."""
    written = FILE.read_text(encoding="utf-8")
    text = document(written)
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
    elif written != text:
        sys.exit(f"{FILE}: out of date; run python -m tgi_core.telemetry.metric_docs")


def _table() -> str:
    lines = ["", "| name | type | labels | |", "|---|---|---|---|", *map(_row, METRICS), ""]
    return "\n".join(lines) + "\n"


def _row(metric: Metric) -> str:
    labels = "; ".join(f"`{label}`" + (f": {', '.join(values)}" if values else "") for label, values in metric.labels)
    return f"| `{metric.name}`{' *' if metric.ours else ''} | {metric.kind} | {labels} | {metric.text} |"


if __name__ == "__main__":
    main()
