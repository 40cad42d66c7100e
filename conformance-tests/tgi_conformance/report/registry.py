"""docs/registry.md, made from committed reports: the backends, their vendors, and the level each has reached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tgi_conformance.report.badge import highest

_HEAD = """# Backend registry

Backends with a published report of the conformance suite, best level first. Generated from the reports in `docs/conformance` by
`tgi-conformance registry`; do not edit. The [support matrix](support-matrix.md) says which features each has passed.

"""

_COLUMNS = ("backend", "install", "made by", "level", "text-core", "run on", "contract", "suite", "report")

_TAIL = """
*Level* is the highest level granted without a gap: L0 package, L1 protocol, L2 semantics, L3 resilience. *Run on* names the devices of the
run, or says that there were none; "emulated" means that the package ran on an emulated device.

## List your backend

1. Run the suite on your device: `tgi-conformance run --backend NAME --report NAME.json`. The workflow that `tgi-conformance new-backend`
   writes does so in your CI and keeps the report.
2. Check it: `tgi-conformance verify NAME.json` fails for a report that was edited or that comes from other clauses.
3. Open a pull request that adds the file to `docs/conformance` and runs
   `tgi-conformance registry docs/conformance --out docs/registry.md`. CI verifies every report in that folder.

Submit a new report with each release of your package. `tgi-conformance diff OLD.json NEW.json` shows what changed between two.
"""


def registry(reports: Iterable[dict[str, Any]]) -> str:
    """Render the registry as Markdown, with a row for each report."""
    rows = [tuple(_cell(cell) for cell in _row(report)) for report in sorted(reports, key=_rank)]
    table = (_COLUMNS, tuple("---" for _ in _COLUMNS), *rows)
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in table) + _TAIL


def _rank(report: dict[str, Any]) -> tuple[int, str]:
    level = highest(report)
    return -int(level[1:]) if level else 1, report["backend"]["name"]


def _row(report: dict[str, Any]) -> tuple[str, ...]:
    backend, name = report["backend"], report["backend"]["name"]
    package = backend["distribution"] or ""
    return (
        f"`{name}`",
        f"`pip install {package.partition(' ')[0]}`" if package else "",
        f"{backend['vendor']}, {backend['version']}",
        highest(report) or "none",
        "granted" if report["text_core"] == "granted" else "not tested" if "not run" in report["text_core"] else "not granted",
        _devices(report),
        ".".join(map(str, backend["api_built"])),
        report["suite"]["version"],
        f"[{report['made'][:10]}](conformance/{name}.json)",
    )


def _devices(report: dict[str, Any]) -> str:
    backend = report["backend"]
    if backend["device_kind"] == "none":
        return "no device: a toy model"
    if not backend["devices"]:
        return "no device"
    emulated = "" if backend["verified_on_hardware"] else "emulated: "
    return emulated + ", ".join(backend["devices"])


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
