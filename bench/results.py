"""Results as files: one JSON document per part, written whole after every step of it, with the machine that they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.machine import machine

RESULTS = Path(__file__).resolve().parent / "results"


def save(folder: Path, part: str, what: dict[str, Any], done: bool) -> None:
    """Replace the part's file. `done` tells a part that is complete from one that was broken off. Reasons may name files; nobody needs
    to know whose."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{part}.json"
    fresh = path.with_suffix(".new")
    text = json.dumps({"part": part, "complete": done, "machine": machine(), **rounded(what)}, indent=1)
    fresh.write_text(text.replace(str(Path.home()), "~") + "\n")
    fresh.replace(path)


def complete(folder: Path, part: str) -> bool:
    """Whether the part is there, and was not broken off."""
    path = folder / f"{part}.json"
    return path.exists() and bool(json.loads(path.read_text())["complete"])


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """All parts by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def rounded(what: Any) -> Any:
    """Numbers to five digits, which is more than they are good for."""
    if isinstance(what, float):
        return float(f"{what:.5g}")
    if isinstance(what, dict):
        return {name: rounded(value) for name, value in what.items()}
    return [rounded(value) for value in what] if isinstance(what, list | tuple) else what
