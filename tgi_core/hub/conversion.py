"""Conversion of .bin weights to safetensors in a child process, so that torch is not imported here and its memory is freed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tgi_core.backend import Progress
from tgi_core.errors import StartupError
from tgi_core.workers.command import python

_LINE = "progress "


def convert(files: Sequence[Path], target: Path, show: Progress) -> None:
    """Convert the tensors of `files` to safetensors in `target`, atomically. Raises StartupError."""
    command = python("tgi_core.hub.pickles", target, *files)
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout or ():
            if line.startswith(_LINE):
                done, total = map(int, line.removeprefix(_LINE).split())
                show("convert weights", done, total, "B")
            else:
                last = line.strip()
    if child.returncode:
        raise StartupError(last or f"converting {files[0]} failed with exit status {child.returncode}; is there enough memory?")
