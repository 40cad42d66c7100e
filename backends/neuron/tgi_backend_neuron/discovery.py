"""Detects Neuron devices and their software without torch, from the files of the driver and of installed packages."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tgi_core.backend import DeviceBusy, Probe, ProbeStatus
from tgi_core.engine.accelerator.discovery import installed, is_verified, major_minor
from tgi_core.engine.accelerator.driver_files import read_text

ROOT = Path("/")
"""The root of the system's files."""
VISIBLE, COUNT = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"
"""The runtime's variables: cores by number ("4", "0-3", "0,2"), and how many."""
TARGETS = {"inf2": "trn1", "trn1": "trn1", "trn1n": "trn1", "trn2": "trn2", "trn2n": "trn2", "trn3": "trn3"}
"""The compiler's name for the chip of a family of instances."""
_GIB = 1 << 30
CHIPS = {"trn1": (2, 16 * _GIB), "trn2": (4, 24 * _GIB), "trn3": (4, 36 * _GIB)}
"""Logical cores of a chip, and bytes of memory per core."""
NATIVE = (2, 13)
"""The first torch-neuronx that is TorchNeuron."""
LEGACY_CHIPS, NATIVE_CHIPS = ("trn1", "trn2"), ("trn2", "trn3")

_INDEX = "https://pip.repos.neuron.amazonaws.com"
_ABSENT = Probe(
    ProbeStatus.ABSENT,
    reason="no Neuron device: no line 'neuron' in /proc/devices",
    hint="install the driver (aws-neuronx-dkms); a container must be started with --device /dev/neuron0",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The Neuron devices of this machine, and the logical cores that this process may use."""

    instance: str
    devices: int
    cores: tuple[int, ...]
    trouble: str = ""
    hint: str = ""

    @property
    def target(self) -> str:
        """The compiler's name for its chip; empty if it is not known."""
        return TARGETS.get(self.instance.partition(".")[0], "")

    @property
    def core_bytes(self) -> int:
        """Device memory per logical core."""
        return CHIPS[self.target][1]

    def __str__(self) -> str:
        return f"{self.instance}, {self.devices} Neuron devices, {len(self.cores)} cores"


def find_machine(environment: Mapping[str, str] = os.environ) -> Machine | None:
    """The machine as the driver shows it; None if there is no device."""
    drivers = read_text(ROOT / "proc/devices")
    nodes = [node for node in sorted((ROOT / "dev").glob("neuron*")) if re.fullmatch(r"neuron\d+", node.name)]
    if not re.search(r"^\s*\d+\s+neuron\s*$", drivers, re.MULTILINE) or not nodes:
        return None
    product = ROOT / "sys/devices/virtual/dmi/id/product_name"
    instance = read_text(product)
    if not instance:
        return Machine("a Neuron device", len(nodes), (), f"{product} cannot be read", "give the container the host's /sys")
    machine = Machine(instance, len(nodes), ())
    if not machine.target:
        return Machine(instance, len(nodes), (), "no known kind of instance", f"use one of {', '.join(TARGETS)}")
    if closed := [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]:
        return Machine(instance, len(nodes), (), f"{closed[0]} cannot be opened", "give the user or container access to it")
    return Machine(instance, len(nodes), visible_cores(len(nodes) * CHIPS[machine.target][0], environment))


def visible_cores(count: int, environment: Mapping[str, str]) -> tuple[int, ...]:
    """The cores, of this many, that the runtime's variables leave visible."""
    asked = environment.get(VISIBLE)
    if asked is None:
        given = environment.get(COUNT, "")
        return tuple(range(min(count, int(given) if given.isdigit() else count)))
    ranges = [(first, last or first) for first, _, last in (part.strip().partition("-") for part in asked.split(","))]
    found = [core for ends in ranges if all(map(str.isdigit, ends)) for core in range(int(ends[0]), min(count, int(ends[1]) + 1))]
    return tuple(dict.fromkeys(found))


def busy_cores(machine: Machine) -> set[int]:
    """The logical cores that hold some process's tensors, according to the driver; none if it does not show that."""
    below, part = ROOT / "sys/devices/virtual/neuron_device", "neuron*/neuron_core*/stats/memory_usage/device_mem/tensors/present"
    files = sorted(below.glob(part), key=lambda file: [int(each) for each in re.findall(r"\d+", str(file.relative_to(below)))])
    count = machine.devices * CHIPS[machine.target][0]  # several physical cores may be one logical core
    held = [int(read_text(file) or 0) for file in files]
    return {place * count // len(held) for place, num_bytes in enumerate(held) if num_bytes}


@cache
def check_free(machine: Machine, cores: int) -> None:
    """Raises DeviceBusy if too few cores are free. Call it before the process loads its first model, which takes cores itself."""
    busy = busy_cores(machine) & set(machine.cores)
    if len(machine.cores) - len(busy) < cores:
        raise DeviceBusy(
            f"{machine.instance}: {cores} Neuron cores are needed, and of {len(machine.cores)} another process holds "
            f"{', '.join(map(str, sorted(busy)))}; neuron-ls shows which, NEURON_RT_VISIBLE_CORES chooses others"
        )


def probe(environment: Mapping[str, str] = os.environ) -> Probe:
    """The probe of the backend `neuron`: optimum-neuron over Torch/XLA's torch-neuronx."""
    machine = find_machine(environment)
    stack = installed("torch-neuronx")
    if machine is not None and machine.target and (machine.target not in LEGACY_CHIPS or major_minor(stack) >= NATIVE):
        found = f"{machine.instance}, torch-neuronx {stack or 'not installed'}: not for optimum-neuron"
        return Probe(ProbeStatus.ABSENT, (), found, "use the backend neuron-native")
    needed = ("optimum-neuron", "torch", "torch-neuronx", "neuronx-cc", "neuronx-distributed", "transformers")
    return _answer(machine, needed, environment)


def probe_native(environment: Mapping[str, str] = os.environ) -> Probe:
    """The probe of the backend `neuron-native`: TorchNeuron."""
    machine = find_machine(environment)
    stack = installed("torch-neuronx")
    if machine is not None and machine.target and machine.target not in NATIVE_CHIPS:
        return Probe(ProbeStatus.ABSENT, (), f"{machine.instance}: TorchNeuron needs trn2 or trn3", "use the backend neuron")
    if machine is not None and machine.target == "trn2" and major_minor(stack) < NATIVE:
        found = f"torch-neuronx {stack}" if stack else "torch-neuronx: not installed"
        return Probe(
            ProbeStatus.ABSENT, (), f"{found}, which is not TorchNeuron", f"use the backend neuron, or install it from {_INDEX}"
        )
    return _answer(machine, ("torch", "torch-neuronx", "transformers"), environment)


def _answer(machine: Machine | None, needed: Sequence[str], environment: Mapping[str, str]) -> Probe:
    if machine is None:
        return _ABSENT
    if not machine.trouble and not machine.cores:
        hidden = next(f"{name}={environment[name]!r}" for name in (VISIBLE, COUNT) if name in environment)
        return Probe(ProbeStatus.ABSENT, (), f"{hidden} hides all cores", "unset that variable, or let it name a core")
    trouble, hint = (machine.trouble, machine.hint) if machine.trouble else _stack_trouble(needed)
    if trouble:
        return Probe(ProbeStatus.BROKEN, (str(machine),), f"{machine.instance}: {trouble}", hint)
    return Probe(ProbeStatus.READY, (str(machine),), verified_on_hardware=is_verified("tgi_backend_neuron"))


def _stack_trouble(needed: Sequence[str]) -> tuple[str, str]:
    """What is wrong with the installed packages, and what to do."""
    versions = {name: installed(name) for name in needed}
    if missing := " ".join(name for name, found in versions.items() if not found):
        return (
            f"not installed: {missing.replace(' ', ', ')}",
            f"use this project's image, or: pip install {missing} --index-url {_INDEX}",
        )
    # PyPI's placeholders under the vendor's names.
    if fake := " ".join(name for name, found in versions.items() if "neuronx" in name and re.match(r"(1\.0|0\.1)($|\.)", found)):
        return f"{fake} from PyPI is a placeholder", f"pip install --force-reinstall {fake} --index-url {_INDEX}"
    stack, torch = versions["torch-neuronx"], versions["torch"]
    wanted = ".".join(map(str, major_minor(stack)))
    if major_minor(stack) != major_minor(torch):
        return f"torch {torch} is installed, and torch-neuronx {stack} needs {wanted}", f"pip install torch=={wanted}.*"
    return "", ""
