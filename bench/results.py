"""Result files: one JSON document per part, with the machine's description, rewritten after every step. Comparisons with other engines
have a folder per kind of processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.chip import chip, slug
from bench.machine import machine

RESULTS = Path(__file__).resolve().parent / "results"
PEERS = RESULTS / "peers"


def peers_folder() -> Path:
    """Where the comparison with other engines on this kind of processor goes."""
    return PEERS / slug(chip())


def save(folder: Path, part: str, what: dict[str, Any], done: bool) -> None:
    """Write a part's file. `done` distinguishes a complete part from an interrupted one. Replaces the home directory by ~."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{part}.json"
    fresh = path.with_suffix(".new")
    text = json.dumps({"part": part, "complete": done, "machine": machine(), **rounded(what)}, indent=1)
    fresh.write_text(text.replace(str(Path.home()), "~") + "\n")
    fresh.replace(path)


def complete(folder: Path, part: str) -> bool:
    """Whether a part's file exists and is complete."""
    path = folder / f"{part}.json"
    return path.exists() and bool(json.loads(path.read_text())["complete"])


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Load all parts by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def load_peers(folder: Path = PEERS) -> dict[str, dict[str, dict[str, Any]]]:
    """Load the comparisons by kind of processor, then by part."""
    return {path.name: load(path) for path in sorted(folder.iterdir(), reverse=True)}


def rounded(what: Any) -> Any:
    """Round numbers to five digits, which exceeds their accuracy."""
    if isinstance(what, float):
        return float(f"{what:.5g}")
    if isinstance(what, dict):
        return {name: rounded(value) for name, value in what.items()}
    return [rounded(value) for value in what] if isinstance(what, list | tuple) else what
