"""A virtual environment for each client: their requirements contradict each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
CONSTRAINTS = ROOT / "constraints.txt"
HOME = ROOT / ".venv-clients"

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "CHROMIUM")


def environment() -> dict[str, str]:
    """What a client's process knows: no keys, addresses or proxies of the user, and no reports to anyone."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "LANGSMITH_TRACING": "false", "PYTHONWARNINGS": "ignore"}
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(HOME / "hf-home"), "NO_PROXY": "127.0.0.1"}
    return kept | quiet | nowhere


def install(name: str) -> Path:
    """The interpreter for a client's scripts, with its packages, installed unless what is asked for is there. Raises
    CalledProcessError, and OSError without npm."""
    if (REQUIREMENTS / f"{name}.json").exists():
        return _install_npm(name)
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
    return folder / "bin" / "python"


def _install_npm(name: str) -> Path:
    """The same for packages of npm. Node is the machine's."""
    wanted = (REQUIREMENTS / f"{name}.json").read_text()
    folder = HOME / name
    stamp = folder / "package.json"
    node = shutil.which("node")
    if node is None:
        raise FileNotFoundError("there is no program `node`")
    if not stamp.exists() or stamp.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        (folder / "wanted.json").write_text(wanted)
        options = ["--silent", "--no-audit", "--no-fund", "--no-save", *json.loads(wanted).get("options", ())]
        command = ["npm", "install", "--prefix", folder, *options, *_pinned(wanted)]
        subprocess.run(command, check=True)
        stamp.write_text(wanted)
    return Path(node)


def _pinned(wanted: str) -> list[str]:
    return [f"{package}@{version}" for package, version in json.loads(wanted)["dependencies"].items()]


def versions(name: str) -> str:
    """What is pinned, as it is written."""
    if (REQUIREMENTS / f"{name}.json").exists():
        return " ".join(_pinned((REQUIREMENTS / f"{name}.json").read_text()))
    return " ".join((REQUIREMENTS / f"{name}.txt").read_text().split())
