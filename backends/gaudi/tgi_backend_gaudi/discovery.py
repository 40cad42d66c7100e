"""Detects Gaudi devices and their software without torch, from the files of the kernel driver and of `habana_frameworks`."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tgi_backend_gaudi.driver import in_use
from tgi_core.backend import DeviceBusy, Probe, ProbeStatus
from tgi_core.engine.accelerator.discovery import Device, TorchRequirement, hidden_by, probe_result, visible
from tgi_core.engine.accelerator.driver_files import holder, read_hex, read_text

ROOT = Path("/")
"""The root of the system's files."""
VISIBLE = "HABANA_VISIBLE_MODULES"
"""The process's variable: module numbers. `HABANA_VISIBLE_DEVICES` belongs to the container runtime: it decides which nodes exist."""
STACK = "habana_frameworks"
_VENDOR = 0x1DA3
_IMAGE = "use this project's image, or one of Intel's: vault.habana.ai/gaudi-docker/…/pytorch-installer-…"

WANTED = TorchRequirement("", "build for Gaudi", _IMAGE, (STACK,))
_ABSENT = Probe(
    ProbeStatus.ABSENT,
    reason="no Gaudi device: none of that vendor under /sys/class/accel",
    hint="install the driver; a container must be started with --runtime=habana -e HABANA_VISIBLE_DEVICES=all",
)


@dataclass(frozen=True, slots=True)
class Module:
    """A Gaudi device, and its node in /dev."""

    device: Device
    node: str


def probe(environment: Mapping[str, str] = os.environ) -> Probe:
    """Detect devices by the driver's files, and check that the installed torch is the one that `habana_frameworks` was built for."""
    modules = [module.device for module in find_modules()]
    hidden = hidden_by(modules, (VISIBLE,), environment)
    wanted = replace(WANTED, version=required_torch())
    return probe_result(visible(modules, environment.get(VISIBLE)), hidden, _ABSENT, wanted, "tgi_backend_gaudi")


def find_modules() -> list[Module]:
    """The Gaudi devices by module number; other vendors' accelerators are in the same class."""
    nodes = (node for node in (ROOT / "sys/class/accel").glob("accel*") if re.fullmatch(r"accel\d+", node.name))
    found = [(_module_id(node), node) for node in nodes if read_hex(node / "device/vendor") == _VENDOR]
    return [_module(node) for _, node in sorted(found)]


def check_free() -> None:
    """Raises DeviceBusy if other processes have every device open, as far as their files or the driver show it; only one process can use
    a device."""
    holders = {module.node: _holder(module.node) for module in find_modules()}
    if all(holders.values()):
        raise DeviceBusy(
            f"the Gaudi device is taken: {'; '.join(f'{node} by {who}' for node, who in holders.items())}; hl-smi shows more"
        )


def _holder(node: str) -> str:
    control = ROOT / node[1:].replace("/accel/accel", "/accel/accel_controlD")
    if (found := holder(node, ROOT)) is not None:
        process, command = found
        return "" if process == os.getpid() else f"process {process} ({command})"
    return "a process of another container or user" if in_use(control) else ""


def required_torch() -> str:
    """The version of torch that `habana_frameworks` was built for; empty if it does not say."""
    spec = importlib.util.find_spec(STACK)
    folders = spec.submodule_search_locations if spec else None
    return next((text for folder in folders or () if (text := read_text(Path(folder, "torch/required_version.txt")))), "")


def _module(node: Path) -> Module:
    kind = read_text(node / "device/device_type") or f"device {read_text(node / 'device/device')}"
    name, path = f"Intel {kind.capitalize()}", f"/dev/accel/{node.name}"
    state = read_text(node / "device/status") or "operational"
    if not os.access(ROOT / path[1:], os.R_OK | os.W_OK):
        hint = "give the user, or the container (--runtime=habana), access to it"
        return Module(Device(name, "", f"{path} cannot be opened", hint), path)
    if state != "operational":
        return Module(Device(name, "", f"the driver says that {path} is {state!r}", "hl-smi shows more; reset it"), path)
    return Module(Device(name), path)


def _module_id(node: Path) -> int:
    text = read_text(node / "device/module_id")
    return int(text) if text.isdigit() else int(node.name.removeprefix("accel"))
