"""The conformance suite on the two backends, over the stand-ins: `python -m tests.neuron.conformance neuron --level L2 --report FILE`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.neuron.standin import LEGACY, NATIVE, environment, make_machine

SUITE = Path(sys.executable).with_name("tgi-conformance")


def main(name: str, *arguments: str) -> int:
    """Run the suite in a process of its own; its exit status."""
    versions, instance = (LEGACY, "inf2.stand-in") if name == "neuron" else (NATIVE, "trn2.stand-in")
    with tempfile.TemporaryDirectory() as folder:
        machine = make_machine(Path(folder, "machine"), instance)
        command = [str(SUITE), "run", "--backend", name, *arguments]
        return subprocess.run(command, env=environment(Path(folder), versions, machine), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
