"""A machine with Neuron devices that isn't there: the driver's files, and packages with the names and versions of the vendor's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGES = Path(__file__).parent / "packages"
LEGACY = {
    "optimum-neuron": "0.4.5",
    "torch": "2.8.0",
    "torch-neuronx": "2.8.0.2.10.16998",
    "neuronx-cc": "2.21.33363.0",
    "neuronx-distributed": "0.15.22404",
}
"""The versions that optimum-neuron 0.4.5 pins."""
NATIVE = {"torch": "2.13.0", "torch-neuronx": "2.13.3.0"}

_SITE = """import tgi_backend_neuron.discovery
from pathlib import Path
tgi_backend_neuron.discovery.ROOT = Path({root!r})
"""


def make_machine(root: Path, instance: str = "inf2.stand-in", devices: int = 1, busy: tuple[int, ...] = ()) -> Path:
    """The driver's files of a machine; the physical cores of the numbers in `busy` hold tensors."""
    write(root / "proc/devices", "Character devices:\n  1 mem\n250 neuron\n")
    write(root / "sys/devices/virtual/dmi/id/product_name", instance + "\n")
    for device in range(devices):
        write(root / f"dev/neuron{device}")
        cores = 8 if instance.startswith("trn2") else 2
        for core in range(cores):
            memory = root / f"sys/devices/virtual/neuron_device/neuron{device}/neuron_core{core}/stats/memory_usage/device_mem"
            write(memory / "tensors/present", "4096\n" if cores * device + core in busy else "0\n")
    return root


def make_packages(site: Path, versions: Mapping[str, str]) -> Path:
    """What pip leaves of packages of these versions."""
    for name, version in versions.items():
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        write(site / folder / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return site


def environment(folder: Path, versions: Mapping[str, str], machine: Path | None = None) -> dict[str, str]:
    """The environment of a Python process on such a machine."""
    site = make_packages(folder / "site", versions)
    write(site / "sitecustomize.py", _SITE.format(root=str(machine or make_machine(folder / "machine"))))
    paths = [str(site), str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"}


def write(file: Path, text: str = "") -> None:
    """A file with its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
