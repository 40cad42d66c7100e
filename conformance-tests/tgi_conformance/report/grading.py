"""What a list of results grants: levels, the profile `text-core`, and each extended feature. Pure, so that `verify` can repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tgi_conformance.verdict import BLOCKING, GRANTED, Verdict

Entry = dict[str, Any]
"""One clause's part of a report."""

_BLOCKING = frozenset(verdict.value for verdict in BLOCKING)
CORE_LEVELS = ("L0", "L1", "L2")
_FAULTS, _UNSUPPORTED = "faults.rows", Verdict.UNSUPPORTED.value


def blocking(entry: Entry) -> bool:
    """Whether a result stands in the way of its level. A provisional clause may fail; but what is claimed must have been tried: a clause
    of a feature that is not declared is UNSUPPORTED, so one that came to nothing is of a feature that is."""
    untried = bool(entry["features"]) and entry["verdict"] != Verdict.FAIL.value
    return entry["verdict"] in _BLOCKING and (untried or not entry["provisional"])


def levels(entries: Sequence[Entry]) -> dict[str, str]:
    """By level "granted", or the first reason why not. A level is granted on top of those before it. Where nothing makes a step fail,
    nobody knows what a failure leaves behind: the third says so."""
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
    """The profile: all clauses up to L2 that need no extended feature."""
    return _first_reason([entry for entry in entries if entry["level"] in CORE_LEVELS and not entry["features"]])


def extended(entries: Sequence[Entry], names: Sequence[str]) -> dict[str, str]:
    """By extended feature: supported, known failures, failing, unsupported or untested; a clause that needs a second one may be missing."""
    return {name: _feature([entry["verdict"] for entry in entries if name in entry["features"]]) for name in names}


def _feature(verdicts: Sequence[str]) -> str:
    if not verdicts or set(verdicts) & {Verdict.NOT_RUN.value, Verdict.INCONCLUSIVE.value, Verdict.ERROR.value}:
        return "failing" if Verdict.FAIL.value in verdicts else "untested"
    if Verdict.FAIL.value in verdicts:
        return "failing"
    if set(verdicts) == {Verdict.UNSUPPORTED.value}:
        return "unsupported"
    return "known failures" if Verdict.KNOWN.value in verdicts else "supported"


def exit_status(entries: Sequence[Entry], level: str) -> int:
    """0: the level is granted; 1: it is not; 3: the suite itself is at fault."""
    if any(entry["verdict"] == Verdict.ERROR.value for entry in entries):
        return 3
    return 0 if levels(entries).get(min(level, "L3")) == "granted" else 1
