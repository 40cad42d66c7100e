"""Where in a backend's own package an error was raised."""

from __future__ import annotations

import traceback
from pathlib import Path

from tgi_conformance.target import Target


def raised_at(error: BaseException, target: Target) -> str:
    """File and line of the innermost frame in the plugin's package, as in "tgi_backend_acme/device.py:41"; "" where there is none."""
    if target.entry is None:
        return ""
    package = target.entry.module.partition(".")[0]
    found = ""
    cause: BaseException | None = error
    while cause is not None:
        for frame in traceback.extract_tb(cause.__traceback__):
            found = _within(Path(frame.filename), package, frame.lineno) or found
        cause = cause.__cause__
    return found


def _within(file: Path, package: str, line: int | None) -> str:
    if file.stem == package:
        return f"{file.name}:{line}"
    folders = file.parts[:-1]
    if package not in folders:
        return ""
    first = len(folders) - 1 - folders[::-1].index(package)
    return f"{'/'.join(file.parts[first:])}:{line}"
