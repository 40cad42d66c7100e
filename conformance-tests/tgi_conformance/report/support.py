"""docs/support-matrix.md, made from committed reports: what each backend has been shown to do, and what is untested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tgi_conformance.report.document import NAMES
from tgi_core.backend.registry import BY_NAME_ONLY

UNTESTED = "Untested"
_LEVELS = {"L0": "L0 package", "L1": "L1 protocol", "L2": "L2 semantics", "L3": "L3 resilience"}
_SHOWN = {
    "supported": "yes",
    "known failures": "known failures",
    "failing": "**failing**",
    "unsupported": "no",
    "untested": UNTESTED,
}

_HEAD = """# Support matrix

Generated from the reports in `docs/conformance` by `tgi-conformance matrix`; do not edit. *yes*: the backend declares the feature and
passed all of its clauses. *no*: the backend does not declare the feature, and refused requests for it. *Untested*: no report covers it.
The row *contract* says which version, and when, each report was made with: what a backend has gained since then is not in it.

"""


def support_matrix(reports: Mapping[str, dict[str, Any]], planned: Sequence[str] = ()) -> str:
    """Render the matrix as Markdown. `planned` backends have no report yet, so all their cells are Untested."""
    names = [*sorted(reports), *(name for name in planned if name not in reports)]
    rows = [("", *names), ("---", *("---" for _ in names))]
    rows.append(("device", *(_of(reports.get(name), _device) for name in names)))
    rows.append(("suite, package", *(_of(reports.get(name), _versions) for name in names)))
    rows.append(("contract", *(_of(reports.get(name), _contract) for name in names)))
    rows += [
        (title, *(_of(reports.get(name), lambda report, level=level: _granted(report["levels"][level])) for name in names))
        for level, title in _LEVELS.items()
    ]
    rows.append(("`text-core`", *(_of(reports.get(name), lambda report: _granted(report["text_core"])) for name in names)))
    rows += [
        (_title(feature), *(_of(reports.get(name), lambda report, feature=feature: _feature(report, feature)) for name in names))
        for feature in NAMES
    ]
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _of(report: dict[str, Any] | None, cell: Any) -> str:
    return UNTESTED if report is None else str(cell(report)).replace("|", "/")


def _device(report: dict[str, Any]) -> str:
    backend = report["backend"]
    kind = backend["device_kind"]
    if backend["verified_on_hardware"]:
        return f"{kind}, verified on hardware"
    return kind if kind in BY_NAME_ONLY or not backend["devices"] else f"{kind}, emulated"


def _versions(report: dict[str, Any]) -> str:
    return f"{report['suite']['version']}, {report['backend']['distribution'] or 'none'}"


def _contract(report: dict[str, Any]) -> str:
    return f"{'.'.join(map(str, report['suite']['api']))}, {report['made'][:10]}"


def _granted(outcome: str) -> str:
    return (
        "granted"
        if outcome == "granted"
        else UNTESTED
        if outcome.endswith(": not run") or ": not run and" in outcome
        else f"not granted ({outcome})"
    )


def _feature(report: dict[str, Any], feature: str) -> str:
    return _SHOWN[report["extended"].get(feature, "untested")]


def _title(feature: str) -> str:
    return feature.replace("_", " ")
