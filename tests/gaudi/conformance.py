"""The conformance suite on the backend, over the stand-in: `python -m tests.gaudi.conformance --level L2 --report FILE`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gaudi.standin import environment, gaudi


def main(*arguments: str) -> int:
    """Run the suite in a process of its own; its exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine = gaudi(folder / "machine", kind="GAUDI2 (a stand-in)")
        command = [str(Path(sys.executable).with_name("tgi-conformance")), "run", "--backend", "gaudi", *arguments]
        return subprocess.run(command, env={**environment(folder, machine), "STANDIN_FEW": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
