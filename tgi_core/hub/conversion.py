""".bin weights to safetensors, in a process of its own: this one stays without torch, and the memory is given back."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tgi_core.backend import Progress
from tgi_core.errors import StartupError
from tgi_core.workers.command import python

_LINE = "progress "


def convert(files: Sequence[Path], target: Path, show: Progress) -> None:
    """Write the tensors of `files` as safetensors into `target`: whole or not at all. Raises StartupError."""
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
