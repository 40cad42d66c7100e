"""Choices that were measured on this machine and are kept for later starts, as small JSON files. Does not import torch.

A file that is missing, damaged or another version's is as none; a folder that cannot be written means that every start measures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def cache_folder(kind: str) -> Path:
    """The folder of a kind of choices, in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tgi-core" / kind


def choice_file(folder: Path, name: str, key: object) -> Path:
    """The file of a choice that depends on `key`, which is compared by its `repr`."""
    return folder / f"{name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}.json"


def read_choice(file: Path) -> dict[str, Any]:
    """What an earlier start kept; empty if that is nothing, or no JSON object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def keep_choice(file: Path, choice: Mapping[str, Any]) -> None:
    """Keep it for the next start, if the folder can be written. Whoever reads at the same time sees the old file or the new one."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as kept:
            json.dump(choice, kept)
        os.replace(kept.name, file)
