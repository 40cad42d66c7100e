"""A machine with Gaudi devices that isn't there: the driver's files, and a stand-in of `habana_frameworks`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.accelerators.machines import write

PACKAGES = Path(__file__).parent / "packages"

_SITE = """import os
from pathlib import Path
import tgi_backend_gaudi.discovery
tgi_backend_gaudi.discovery.ROOT = Path({root!r})
if os.environ.get("STANDIN_HELD"):
    from habanalabs import answer
    tgi_backend_gaudi.driver.fcntl.ioctl = answer
"""


def gaudi(root: Path, count: int = 1, *, kind: str = "GAUDI2", vendor: str = "0x1da3", status: str = "operational") -> Path:
    """The driver's files of so many devices."""
    for index in range(count):
        node = root / f"sys/class/accel/accel{index}/device"
        for name, text in (("vendor", vendor), ("device", "0x1020"), ("device_type", kind), ("status", status)):
            write(node / name, text + "\n")
        write(root / f"dev/accel/accel{index}")
        write(root / f"dev/accel/accel_controlD{index}")
    return root


def packages(folder: Path, torch: str) -> Path:
    """The stand-in, built for another torch."""
    shutil.copytree(PACKAGES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "habana_frameworks/torch/required_version.txt").write_text(torch)
    return folder


def environment(folder: Path, machine: Path, stack: Path | None = PACKAGES) -> dict[str, str]:
    """The environment of a Python process on such a machine, with that stack."""
    write(folder / "site/sitecustomize.py", _SITE.format(root=str(machine)))
    paths = [str(folder / "site"), *([str(stack)] if stack else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"}
