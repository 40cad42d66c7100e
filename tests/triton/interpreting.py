"""Running a file of tests in Triton's interpreter: in a process of its own, since an import chooses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
_PADDING = ("overflow encountered", "invalid value encountered")
"""Warm-up, and rows that pad a step, compute with whatever the memory held: what NumPy warns of there means nothing."""


def run_interpreted(name: str) -> None:
    """Every test of the file of that name passes."""
    options = ["-x", "-p", "tests.triton.patched_once", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "timeout=1800"]
    options += [f"-Wignore:{warning}:RuntimeWarning" for warning in _PADDING]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / name)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
