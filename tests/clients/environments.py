"""A virtual environment for each client: their requirements contradict each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
CONSTRAINTS = ROOT / "constraints.txt"
HOME = ROOT / ".venv-clients"

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE")


def environment() -> dict[str, str]:
    """What a client's process knows: no keys, addresses or proxies of the user, and no reports to anyone."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "LANGSMITH_TRACING": "false", "PYTHONWARNINGS": "ignore"}
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(HOME / "hf-home"), "NO_PROXY": "127.0.0.1"}
    return kept | quiet | nowhere


def install(name: str) -> Path:
    """The folder of a client's programs, installed unless what is asked for is there. Raises CalledProcessError."""
    requirements = REQUIREMENTS / f"{name}.txt"
    folder, stamp = HOME / name, HOME / name / "installed.txt"
    wanted = requirements.read_text() + CONSTRAINTS.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip: list[str | Path] = [
            folder / "bin" / "pip",
            "install",
            "--disable-pip-version-check",
            "-q",
            "-c",
            CONSTRAINTS,
            "-r",
            requirements,
        ]
        subprocess.run(pip, check=True)
        stamp.write_text(wanted)
    return folder / "bin"


def versions(name: str) -> str:
    """What is pinned, as it is written."""
    return " ".join((REQUIREMENTS / f"{name}.txt").read_text().split())
