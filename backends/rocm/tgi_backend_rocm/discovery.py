"""Detects AMD devices without torch, from the files of their kernel driver.

Source: the kernel's amdkfd topology, `/sys/class/kfd/kfd/topology/nodes/N/properties`: `gfx_target_version` is 90402 for gfx942 (major,
minor and stepping, two digits each except the first), and 0 for a node that is a processor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tgi_core.backend import Probe, ProbeStatus
from tgi_core.engine.accelerator.discovery import Device, TorchRequirement, hidden_by, probe_result, visible

HIP, CUDA, ROCR = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
ARCHITECTURES = frozenset(["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1150", "gfx1151", "gfx1200", "gfx1201"])
"""Architectures that torch's builds for ROCm 7 have code for, and that our kernels are compiled for in tests. Others, such as a desktop
processor's integrated graphics (gfx1036), are ignored."""

WANTED = TorchRequirement(
    "hip", "build for ROCm", "use a rocm/pytorch image, or install torch from download.pytorch.org/whl/rocmX.Y with Python 3.12"
)
_ABSENT = Probe(
    ProbeStatus.ABSENT,
    reason=f"no AMD device of {', '.join(sorted(ARCHITECTURES))}: none is listed under /sys/class/kfd",
    hint="install the amdgpu driver; a container must be started with --device /dev/kfd --device /dev/dri",
)


def probe(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Probe:
    """The probe's result from the system's files under `root`."""
    devices = find_devices(root)
    if devices and (trouble := disagreement(environment)):
        return Probe(ProbeStatus.BROKEN, tuple(device.name for device in devices), trouble, f"set {HIP} alone")
    hidden = hidden_by(devices, (ROCR, HIP, CUDA), environment)
    left = visible(devices, environment.get(ROCR))
    left = visible(left, environment.get(HIP, environment.get(CUDA)))
    return probe_result(left, hidden, _ABSENT, WANTED, "tgi_backend_rocm")


def disagreement(environment: Mapping[str, str]) -> str:
    """How the two variables contradict each other; empty if they don't. Some libraries read one, some the other."""
    hip, cuda = environment.get(HIP), environment.get(CUDA)
    return f"{HIP}={hip!r} and {CUDA}={cuda!r} name different devices" if hip is not None and cuda not in (None, hip) else ""


def find_devices(root: Path) -> list[Device]:
    """Devices in the order of the driver's nodes."""
    nodes = sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"), key=lambda file: int(file.parent.name))
    found = [_device(root, _properties(node)) for node in nodes]
    return [device for device in found if device is not None]


def _properties(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:  # this control group may not see the node
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _device(root: Path, properties: Mapping[str, int]) -> Device | None:
    version = properties.get("gfx_target_version", 0)
    architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    if architecture not in ARCHITECTURES:
        return None
    name = f"AMD {architecture}, {properties.get('simd_count', 0) // max(1, properties.get('simd_per_cu', 1))} compute units"
    id = f"GPU-{properties.get('unique_id', 0):016x}"
    if not os.access(root / "dev/kfd", os.R_OK | os.W_OK):
        return Device(
            name, id, "/dev/kfd cannot be opened", "add the user to the groups render and video, or give the container /dev/kfd"
        )
    return Device(name, id)
