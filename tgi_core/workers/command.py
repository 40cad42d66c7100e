"""How a Python process of ours is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ONE_THREAD = {"MALLOC_ARENA_MAX": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment of a process whose address space is bounded: threads would take it by the number of the machine's cores."""


def same_imports() -> dict[str, str]:
    """Environment of a process that is to find every module that this one finds, such as a plugin under test that is not installed."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [*given, *sys.path]))}


def python(program: str | Path, *arguments: object) -> list[str]:
    """The command for a module by its name, or a script by its path.

    `-P` keeps the current directory off the import path: it may be a model's folder, and a `json.py` there would run.
    """
    target = [str(program)] if isinstance(program, Path) else ["-m", program]
    return [sys.executable, "-P", *target, *map(str, arguments)]
