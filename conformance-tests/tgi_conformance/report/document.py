"""The report as a JSON document: create, write and verify it."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tgi_conformance import __version__
from tgi_conformance.clause import Clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.features import EXTENSIONS
from tgi_conformance.report import grading
from tgi_conformance.result import Result
from tgi_conformance.subject import Subject
from tgi_conformance.verdict import Verdict
from tgi_core.backend import API_VERSION

SCHEMA = 1
SCHEMA_FILE = Path(__file__).with_name("schema.json")
_PACKAGES = ("tgi-core", "tgi-conformance", "torch", "transformers", "numpy")
_NO_JUDGES = ("mutants", "generated", "proof", "kit", "cli", "report")
"""Parts of the suite that do not affect any verdict."""
NAMES = tuple(name for name, extension in EXTENSIONS.items() if not extension.structural)
"""The extended features, in the order of the support matrix."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a report was made."""

    subject: Subject
    devices: tuple[str, ...]
    verified_on_hardware: bool
    model: str
    seed: int
    effort: float
    seconds: float


@cache
def suite_digest() -> str:
    """Hash all files of the suite that affect a verdict, to tell whether two reports come from the same suite."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.suffix in (".py", ".json", ".safetensors") and inside.parts[0] not in _NO_JUDGES:
            digest.update(f"{inside.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def make(run: Run, results: Sequence[tuple[Clause, Result]]) -> dict[str, Any]:
    """Make a report with its digest."""
    entries = [_entry(clause, result) for clause, result in results]
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "suite": {"version": __version__, "digest": suite_digest(), "clauses": len(CLAUSES), "api": list(API_VERSION)},
        "backend": _backend(run),
        "model": run.model,
        "dtype": run.subject.target.dtype,
        "seed": run.seed,
        "effort": run.effort,
        "environment": _environment(),
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(run.seconds, 1),
        "results": entries,
    }
    document |= grades(entries)
    document["digest"] = digest_of(document)
    return document


def grades(entries: Sequence[dict[str, Any]], names: Iterable[str] = NAMES) -> dict[str, Any]:
    """Return what the results grant; a report of an older suite lacks the `names` of later features."""
    return {
        "levels": grading.levels(entries),
        "text_core": grading.text_core(entries),
        "extended": grading.extended(entries, list(names)),
    }


def _backend(run: Run) -> dict[str, Any]:
    manifest = run.subject.manifest
    return {
        "name": run.subject.target.name,
        "distribution": run.subject.distribution,
        "vendor": manifest.vendor if manifest else "",
        "version": manifest.version if manifest else "",
        "api_built": list(manifest.api_built) if manifest else [],
        "device_kind": run.subject.target.device_kind,
        "devices": list(run.devices),
        "verified_on_hardware": run.verified_on_hardware,
    }


def _environment() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _entry(clause: Clause, result: Result) -> dict[str, Any]:
    return {
        "id": clause.id,
        "sentence": clause.sentence,
        "level": clause.level.value,
        "features": [name for name in clause.needs if not EXTENSIONS[name].structural],
        "provisional": clause.provisional,
        "verdict": result.verdict.value,
        "message": result.message,
        "seconds": round(result.seconds, 3),
        "situations": result.situations,
        "figures": {name: round(value, 4) for name, value in result.figures.items()},
        "sequence": list(result.sequence),
    }


def digest_of(document: dict[str, Any]) -> str:
    """Hash everything in a report except its digest."""
    content = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def written(document: dict[str, Any]) -> str:
    """Return the text of a report file."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


class BadReport(ValueError):
    """A file that is not a report of this suite; the message says why."""


def read(path: Path) -> dict[str, Any]:
    """Read a report from a file. Raises BadReport."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadReport(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadReport(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not isinstance(document.get("results"), list):
        raise BadReport(f"{path}: not a report of schema {SCHEMA}")
    return document


def read_all(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the reports of a folder, by backend. Raises BadReport for one that cannot be read or has objections."""
    reports = {}
    for path in sorted(folder.glob("*.json")):
        document = read(path)
        if found := objections(document):
            raise BadReport(f"{path}: {found[0]}")
        reports[document["backend"]["name"]] = document
    return reports


def objections(document: dict[str, Any]) -> list[str]:
    """Return what is wrong with a report: edits, clauses unlike the suite's, grades that do not follow from its results."""
    found = []
    try:
        entries = document["results"]
        if document["digest"] != digest_of(document):
            found.append("its digest does not match its content: it was edited after it was written")
        for name, value in grades(entries, document["extended"]).items():
            if document[name] != value:
                found.append(f"its {name.replace('_', ' ')} do not follow from its results")
        verdicts = {verdict.value for verdict in Verdict}
        found += [f"{entry['id']} has the verdict {entry['verdict']!r}" for entry in entries if entry["verdict"] not in verdicts]
        found += _other_clauses(document)
    except (KeyError, TypeError, AttributeError) as error:
        found.append(f"it lacks a required field: {type(error).__name__}: {error}")
    return found


def _other_clauses(document: dict[str, Any]) -> list[str]:
    """Compare clauses with this suite's, if this suite wrote the report."""
    if document["suite"]["digest"] != suite_digest():
        return []
    own = {clause.id: (clause.level.value, clause.provisional, clause.sentence) for clause in CLAUSES}
    theirs = {entry["id"]: (entry["level"], entry["provisional"], entry["sentence"]) for entry in document["results"]}
    missing = sorted(own.keys() - theirs.keys())
    other = sorted(id for id, value in theirs.items() if own.get(id) != value)
    return [f"clause {id} is missing" for id in missing] + [f"clause {id} differs from the suite's" for id in other]


def same_suite(document: dict[str, Any]) -> bool:
    """Return whether exactly this suite wrote the report."""
    return bool(document["suite"]["digest"] == suite_digest())
