"""Changes between two reports of a backend: what is granted, and which clauses have another verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tgi_conformance.report.grading import blocking
from tgi_conformance.verdict import Verdict

_GRANTED = "granted"
_KEPT = {Verdict.PASS.value, Verdict.KNOWN.value}


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between two reports; `worse` if something that held no longer does."""

    what: str
    before: str
    after: str
    worse: bool = False


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Return all changes: suite and package first, then levels, features and clauses."""
    return [*_made_by(old, new), *_grades(old, new), *_clauses(old, new)]


def _made_by(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    for what, one, other in (
        ("backend", old["backend"]["name"], new["backend"]["name"]),
        ("package", old["backend"]["distribution"], new["backend"]["distribution"]),
        ("suite", _suite(old), _suite(new)),
        ("dtype", old["dtype"], new["dtype"]),
        ("model", old["model"], new["model"]),
    ):
        if one != other:
            yield Change(what, one, other)


def _suite(document: dict[str, Any]) -> str:
    return f"{document['suite']['version']} ({document['suite']['digest'][:8]})"


def _grades(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    before = old["levels"] | {"text-core": old["text_core"]} | old["extended"]
    after = new["levels"] | {"text-core": new["text_core"]} | new["extended"]
    for name in {**before, **after}:
        one, other = str(before.get(name, "absent")), str(after.get(name, "absent"))
        if one != other:
            yield Change(name, one, other, worse=one in (_GRANTED, "yes"))


def _clauses(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    before, after = ({entry["id"]: entry for entry in each["results"]} for each in (old, new))
    for id in {**before, **after}:
        one, other = before.get(id), after.get(id)
        if one is None and other is not None:
            yield Change(id, "absent", _told(other), worse=blocking(other))
        elif other is None and one is not None:
            yield Change(id, _told(one), "absent")
        elif one is not None and other is not None and one["verdict"] != other["verdict"]:
            yield Change(id, one["verdict"], _told(other), worse=one["verdict"] in _KEPT and other["verdict"] not in _KEPT)


def _told(entry: dict[str, Any]) -> str:
    first = entry["message"].splitlines()[0] if entry["message"] else ""
    return f"{entry['verdict']}: {first}" if first else str(entry["verdict"])
