"""How a Python process of ours is started."""

from __future__ import annotations

import sys
from pathlib import Path


def python(program: str | Path, *arguments: object) -> list[str]:
    """The command for a module by its name, or a script by its path.

    `-P` keeps the current directory off the import path: it may be a model's folder, and a `json.py` there would run.
    """
    target = [str(program)] if isinstance(program, Path) else ["-m", program]
    return [sys.executable, "-P", *target, *map(str, arguments)]
