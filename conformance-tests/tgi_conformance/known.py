"""Known failures: what a vendor's conformance.toml says will fail, why, and until when.

    [[known]]
    clause = "formula.typical"
    reason = "typical-p is computed in float16"
    kind = "ours"            # ours: we will repair it; upstream: somebody else must; never: the device cannot
    until = 2027-03-01
    link = "https://…"       # optional

They are strict: one that does not fail, or whose date has passed, is a failure itself.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgi_conformance.result import Result
from tgi_conformance.verdict import Verdict

FILE = "conformance.toml"
KINDS = ("ours", "upstream", "never")


class BadKnown(ValueError):
    """conformance.toml is wrong; the message names the file and the entry."""


@dataclass(frozen=True, slots=True)
class Known:
    """One failure that is expected through the day `until`."""

    clause: str
    reason: str
    kind: str
    until: datetime.date
    link: str = ""


def read_known(path: Path, clauses: Collection[str]) -> dict[str, Known]:
    """By clause. Raises BadKnown for a broken file, or an id that no clause has."""
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadKnown(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadKnown(f"{path}: {error}") from error
    entries = value.get("known", [])
    if set(value) - {"known"} or not isinstance(entries, list):
        raise BadKnown(f"{path}: holds tables [[known]] and nothing else")
    found = [_known(path, index, entry, clauses) for index, entry in enumerate(entries, 1)]
    if len({known.clause for known in found}) < len(found):
        raise BadKnown(f"{path}: a clause stands there twice")
    return {known.clause: known for known in found}


def _known(path: Path, index: int, entry: Any, clauses: Collection[str]) -> Known:
    where = f"{path}: [[known]] number {index}"
    if not isinstance(entry, dict) or not {"clause", "reason", "kind", "until"} <= set(entry) <= {
        "clause",
        "reason",
        "kind",
        "until",
        "link",
    }:
        raise BadKnown(f"{where} needs clause, reason, kind and until, and may have link")
    if entry["clause"] not in clauses:
        raise BadKnown(f"{where}: no clause is called {entry['clause']!r}; see tgi-conformance list")
    if entry["kind"] not in KINDS or not entry["reason"]:
        raise BadKnown(f"{where}: kind is one of {', '.join(KINDS)}, and reason says why")
    if type(entry["until"]) is not datetime.date:
        raise BadKnown(f"{where}: until is a date, as 2027-03-01")
    return Known(entry["clause"], str(entry["reason"]), entry["kind"], entry["until"], str(entry.get("link", "")))


def apply(result: Result, known: Known | None, today: datetime.date) -> Result:
    """A result in the light of what was said beforehand."""
    if known is None or result.verdict in (Verdict.NOT_RUN, Verdict.ERROR):
        return result
    if result.verdict is not Verdict.FAIL:
        return result.become(Verdict.FAIL, f"{FILE} says that it fails ({known.reason}), and it does not: remove the entry")
    if today > known.until:
        return result.become(Verdict.FAIL, f"known until {known.until}, which has passed ({known.reason}): {result.message}")
    return result.become(Verdict.KNOWN, f"{known.kind}, until {known.until}: {known.reason} ({result.message})")
