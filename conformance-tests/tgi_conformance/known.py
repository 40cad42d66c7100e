"""Known failures: what a vendor's conformance.toml expects to fail, why, and until when.

    [[known]]
    clause = "formula.typical"
    reason = "typical-p is computed in float16"
    kind = "ours"            # ours: we will fix it; upstream: others must fix it; never: the device cannot
    until = 2027-03-01
    link = "https://…"       # optional

They are strict: an entry whose clause does not fail, or whose date has passed, counts as a failure.
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


class InvalidKnownFailures(ValueError):
    """An invalid conformance.toml; the message names the file and the entry."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A failure that is expected up to and including the day `until`."""

    clause: str
    reason: str
    kind: str
    until: datetime.date
    link: str = ""


def read_known(path: Path, clauses: Collection[str]) -> dict[str, KnownFailure]:
    """Read known failures, keyed by clause. Raises InvalidKnownFailures for an invalid file or an unknown clause id."""
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidKnownFailures(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidKnownFailures(f"{path}: {error}") from error
    entries = value.get("known", [])
    if set(value) - {"known"} or not isinstance(entries, list):
        raise InvalidKnownFailures(f"{path}: may contain only [[known]] tables")
    found = [_known(path, index, entry, clauses) for index, entry in enumerate(entries, 1)]
    if len({known.clause for known in found}) < len(found):
        raise InvalidKnownFailures(f"{path}: a clause is listed twice")
    return {known.clause: known for known in found}


def _known(path: Path, index: int, entry: Any, clauses: Collection[str]) -> KnownFailure:
    where = f"{path}: [[known]] entry {index}"
    if not isinstance(entry, dict) or not {"clause", "reason", "kind", "until"} <= set(entry) <= {
        "clause",
        "reason",
        "kind",
        "until",
        "link",
    }:
        raise InvalidKnownFailures(f"{where} needs clause, reason, kind and until, and may have link")
    if entry["clause"] not in clauses:
        raise InvalidKnownFailures(f"{where}: there is no clause {entry['clause']!r}; see tgi-conformance list")
    if entry["kind"] not in KINDS or not entry["reason"]:
        raise InvalidKnownFailures(f"{where}: kind must be one of {', '.join(KINDS)}, and reason must not be empty")
    if type(entry["until"]) is not datetime.date:
        raise InvalidKnownFailures(f"{where}: until must be a date such as 2027-03-01")
    return KnownFailure(entry["clause"], str(entry["reason"]), entry["kind"], entry["until"], str(entry.get("link", "")))


def apply(result: Result, known: KnownFailure | None, today: datetime.date) -> Result:
    """Return the result after taking a known failure into account."""
    if known is None or result.verdict in (Verdict.NOT_RUN, Verdict.ERROR):
        return result
    if result.verdict is not Verdict.FAIL:
        return result.become(Verdict.FAIL, f"{FILE} expects this to fail ({known.reason}), but it did not: remove the entry")
    if today > known.until:
        return result.become(Verdict.FAIL, f"known until {known.until}, which has passed ({known.reason}): {result.message}")
    return result.become(Verdict.KNOWN, f"{known.kind}, until {known.until}: {known.reason} ({result.message})")
