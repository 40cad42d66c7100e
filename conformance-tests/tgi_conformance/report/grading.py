"""Grades of a list of results: levels, the profile `text-core`, and each extended feature.

The functions are pure, so that `verify` can repeat them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tgi_conformance.verdict import BLOCKING, GRANTED, Verdict

Entry = dict[str, Any]
"""One clause's entry in a report."""

_BLOCKING = frozenset(verdict.value for verdict in BLOCKING)
CORE_LEVELS = ("L0", "L1", "L2")
_FAULTS, _UNSUPPORTED = "faults.rows", Verdict.UNSUPPORTED.value


def blocking(entry: Entry) -> bool:
    """Return whether a result prevents its level from being granted.

    A provisional clause may fail, but what is declared must be tested: clauses of undeclared features are UNSUPPORTED, so one
    without a result belongs to a declared feature.
    """
    untried = bool(entry["features"]) and entry["verdict"] != Verdict.FAIL.value
    return entry["verdict"] in _BLOCKING and (untried or not entry["provisional"])


def levels(entries: Sequence[Entry]) -> dict[str, str]:
    """Map each level to "granted" or the first reason why it is not. A level requires the ones below it.

    If nothing can make a step fail, what a failure leaves behind is unknown, and L3 says so.
    """
    found: dict[str, str] = {}
    for level in GRANTED:
        reached = [entry for entry in entries if entry["level"] <= level.value]
        found[level.value] = _first_reason(reached)
    if found["L3"] == "granted" and any(entry["id"] == _FAULTS and entry["verdict"] == _UNSUPPORTED for entry in entries):
        found["L3"] = f"without faults ({_FAULTS}: {_UNSUPPORTED})"
    return found


def _first_reason(entries: Sequence[Entry]) -> str:
    reasons = [entry for entry in entries if blocking(entry)]
    if not reasons:
        return "granted"
    more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"{reasons[0]['id']}: {reasons[0]['verdict']}{more}"


def text_core(entries: Sequence[Entry]) -> str:
    """Return the grade of the profile `text-core`: all clauses up to L2 that need no extended feature."""
    return _first_reason([entry for entry in entries if entry["level"] in CORE_LEVELS and not entry["features"]])


def extended(entries: Sequence[Entry], names: Sequence[str]) -> dict[str, str]:
    """Map each extended feature to supported, known failures, failing, unsupported or untested.

    A clause that also needs another feature may be missing. A provisional clause may fail.
    """
    counted = [entry for entry in entries if not (entry["provisional"] and entry["verdict"] == Verdict.FAIL.value)]
    return {name: _feature([entry["verdict"] for entry in counted if name in entry["features"]]) for name in names}


def _feature(verdicts: Sequence[str]) -> str:
    if not verdicts or set(verdicts) & {Verdict.NOT_RUN.value, Verdict.INCONCLUSIVE.value, Verdict.ERROR.value}:
        return "failing" if Verdict.FAIL.value in verdicts else "untested"
    if Verdict.FAIL.value in verdicts:
        return "failing"
    if set(verdicts) == {Verdict.UNSUPPORTED.value}:
        return "unsupported"
    return "known failures" if Verdict.KNOWN.value in verdicts else "supported"


def exit_status(entries: Sequence[Entry], level: str) -> int:
    """Return 0 if the level is granted, 1 if it is not, and 3 if the suite itself is at fault."""
    if any(entry["verdict"] == Verdict.ERROR.value for entry in entries):
        return 3
    return 0 if levels(entries).get(min(level, "L3")) == "granted" else 1
