"""Detects Intel GPUs without torch, from the files of their kernel drivers (i915 and xe)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tgi_core.backend import Probe, ProbeStatus
from tgi_core.engine.accelerator.discovery import Device, TorchRequirement, hidden_by, probe_result, visible
from tgi_core.engine.accelerator.driver_files import read_hex
from tgi_core.engine.accelerator.torch_build import torch_build

VISIBLE = "ZE_AFFINITY_MASK"
_VENDOR = 0x8086
_INTEGRATED = "0000:00:02.0"
"""The PCI address of an Intel processor's integrated graphics."""

WANTED = TorchRequirement(
    "xpu",
    "build for Intel GPUs",
    "pip install torch --index-url https://download.pytorch.org/whl/xpu, in an environment without plain triton",
)
_ABSENT = Probe(
    ProbeStatus.ABSENT,
    reason="no Intel GPU: no device of that vendor under /sys/class/drm",
    hint="install Intel's compute driver; a container must be started with --device /dev/dri",
)
_UNUSED = Probe(
    ProbeStatus.ABSENT,
    reason="only the processor's integrated graphics, and torch is not a build for it",
    hint=f"to use it: {WANTED.install}",
)


def probe(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Probe:
    """The probe's result from the system's files under `root`."""
    places = find_devices(root)
    devices = [device for _, device in places]
    # Nearly every Intel desktop has one: it is used only if torch was chosen for it.
    if places and all(place == _INTEGRATED for place, _ in places) and "xpu" not in torch_build():
        return _UNUSED
    mask = environment.get(VISIBLE)
    tiles = {VISIBLE: ",".join(dict.fromkeys(part.strip().partition(".")[0] for part in mask.split(",")))} if mask else {}
    hidden = hidden_by(devices, (VISIBLE,), tiles)
    return probe_result(visible(devices, tiles.get(VISIBLE)), hidden, _ABSENT, WANTED, "tgi_backend_xpu")


def find_devices(root: Path) -> list[tuple[str, Device]]:
    """(PCI address, device) in the order of their nodes."""
    nodes = sorted(root.glob("sys/class/drm/renderD*/device"), key=lambda node: int(node.parent.name.removeprefix("renderD")))
    return [(node.resolve().name, _device(root, node)) for node in nodes if read_hex(node / "vendor") == _VENDOR]


def _device(root: Path, node: Path) -> Device:
    kind = "integrated graphics" if node.resolve().name == _INTEGRATED else "GPU"
    name = f"Intel {kind} {read_hex(node / 'device'):04x}"
    if not os.access(root / "dev/dri" / node.parent.name, os.R_OK | os.W_OK):
        return Device(
            name,
            "",
            f"/dev/dri/{node.parent.name} cannot be opened",
            "add the user to the group render, or give the container /dev/dri",
        )
    return Device(name)
