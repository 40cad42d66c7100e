"""Installing this repository's wheels on a machine that has torch and nothing of ours. Imports nothing but the standard library."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def install(packages: Sequence[str], wheels: Path, into: Path) -> str:
    """Make packages importable here and in child processes, from the wheels in a folder where they are not installed. Returns why that is
    not possible; empty if it is.

    Only the packages themselves: what they depend on must be there, and whoever needs more says so.
    """
    missing = [package for package in packages if not _is_installed(package)]
    if not missing:
        return ""
    found = {package: sorted(wheels.glob(f"{package.replace('-', '_')}-*.whl")) for package in missing}
    if absent := [package for package, files in found.items() if not files]:
        return f"{', '.join(absent)} not installed, and no wheel of it in {wheels}; `make wheels` builds them into dist/"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(into)]
    done = subprocess.run([*command, *(str(files[-1]) for files in found.values())], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"pip cannot install the wheels: {done.stderr.strip().splitlines()[-1:] or done.returncode}"
    sys.path.insert(0, str(into))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(into), os.environ.get("PYTHONPATH"))))
    importlib.invalidate_caches()
    return ""


def _is_installed(package: str) -> bool:
    """Whether every process finds it. What a build has left in this repository is found only by the script, which has it on its path."""
    elsewhere = [place for place in sys.path if Path(place).resolve() != _ROOT]
    return any(True for _ in distributions(name=package, path=elsewhere))
