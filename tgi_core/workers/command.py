"""Commands and environments for Python child processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ONE_THREAD = {"MALLOC_ARENA_MAX": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment of a process with limited address space, of which thread pools would use more the more cores the machine has."""


def same_imports() -> dict[str, str]:
    """Environment of a child that can import every module that this process can, such as an uninstalled plugin under test."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [*given, *sys.path]))}


def python(program: str | Path, *arguments: object) -> list[str]:
    """Command that runs a module by name or a script by path.

    `-P` keeps the current directory off the import path: in a model's directory, Python would otherwise run the model's `json.py`.
    """
    target = [str(program)] if isinstance(program, Path) else ["-m", program]
    return [sys.executable, "-P", *target, *map(str, arguments)]
