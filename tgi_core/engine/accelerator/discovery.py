"""Turns the devices that the system shows into a probe's result; shared by all packages. Does not import torch."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from tgi_core.backend import DeviceLost, Probe, ProbeStatus
from tgi_core.engine.accelerator.torch_build import torch_build

PROOF = "hardware.json"
"""A device package's proof: a report of `tgi-conformance run` on the device, made with this version of the package."""

_NEEDED = ("numpy", "torch", "transformers", "safetensors")
_LEVELS = ("L0", "L1", "L2", "L3")


@dataclass(frozen=True, slots=True)
class Device:
    """A device as the system shows it. Variables name it by its `id` or its index; `trouble` is why it cannot be used."""

    name: str
    id: str = ""
    trouble: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TorchRequirement:
    """The torch build that a package needs. `platform` is the name in `torch/version.py` that has a version in that build; without one,
    any build will do. `packages` are needed besides torch."""

    platform: str
    build: str
    """The build, in words."""
    install: str
    """How to get it."""
    packages: tuple[str, ...] = ()
    version: str = ""
    """The version of torch that the packages were built for, compared by major and minor; empty if any will do."""


def probe_result(devices: Sequence[Device], hidden: str, absent: Probe, wanted: TorchRequirement, package: str) -> Probe:
    """READY with the devices' names; ABSENT if there is none, or the operator has hidden all of them (`hidden` says how). BROKEN if there
    is a device but something else is missing: the reason names it, the hint says what to do.
    """
    if hidden:
        return Probe(ProbeStatus.ABSENT, reason=hidden, hint="unset that variable, or let it name a device")
    if not devices:
        return absent
    names = tuple(device.name for device in devices)
    if trouble := next((device for device in devices if device.trouble), None):
        return Probe(ProbeStatus.BROKEN, names, f"{trouble.name}: {trouble.trouble}", trouble.hint)
    missing = [name for name in (*wanted.packages, *_NEEDED) if importlib.util.find_spec(name) is None]
    if missing:
        hint = wanted.install if {"torch", *wanted.packages} & set(missing) else f"pip install {' '.join(missing)}"
        return Probe(ProbeStatus.BROKEN, names, f"{names[0]} was found; not installed: {', '.join(missing)}", hint)
    build = torch_build()
    if wanted.platform and wanted.platform not in build:
        found = build.get("__version__", "of an unknown version")
        return Probe(
            ProbeStatus.BROKEN, names, f"{names[0]} was found, but torch {found} is not a {wanted.build}", wanted.install
        )
    there = build.get("__version__", "")
    if wanted.version and major_minor(wanted.version) != major_minor(there):
        beside = f"torch {there} is installed with a {', '.join(wanted.packages)} for torch {wanted.version}"
        hint = f"{wanted.install}, and install nothing that brings its own torch"
        return Probe(ProbeStatus.BROKEN, names, f"{names[0]} was found, but {beside}", hint)
    return Probe(ProbeStatus.READY, names, verified_on_hardware=is_verified(package))


def major_minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version; (0, 0) if there is none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_ready(found: Probe) -> None:
    """Raises DeviceLost, with the reason and what to do, if a probe did not find the device ready."""
    if found.status is not ProbeStatus.READY:
        raise DeviceLost(f"{found.reason}; {found.hint}")


def visible(devices: Sequence[Device], asked: str | None) -> list[Device]:
    """The devices that a variable like `…_VISIBLE_DEVICES` leaves visible, in its order. Entries are indices or prefixes of ids; None
    means all devices. Like vendors' runtimes, this stops at the first entry that names no device.
    """
    if asked is None:
        return list(devices)
    found: list[Device] = []
    for entry in (part.strip() for part in asked.split(",")):
        device = _named(devices, entry)
        if device is None:
            break
        found.append(device)
    return found


def _named(devices: Sequence[Device], entry: str) -> Device | None:
    if entry.isdigit():
        return devices[int(entry)] if int(entry) < len(devices) else None
    return next((device for device in devices if entry and device.id.startswith(entry)), None)


def hidden_by(devices: Sequence[Device], variables: Sequence[str], environment: Mapping[str, str]) -> str:
    """Which of these variables hides all devices, in words; empty if none does."""
    for name in variables:
        if devices and not visible(devices, environment.get(name)):
            return f"{name}={environment[name]!r} hides {_count(devices)}"
    return ""


def _count(devices: Sequence[Device]) -> str:
    return f"all {len(devices)} devices" if len(devices) > 1 else f"the only device ({devices[0].name})"


def installed(distribution: str) -> str:
    """The distribution's version, or "" if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def is_verified(package: str) -> bool:
    """Whether the package contains a report for its current version that grants it text-core and every level up to L3 on a device."""
    try:
        report = json.loads(files(package).joinpath(PROOF).read_text(encoding="utf-8"))
    except (FileNotFoundError, ModuleNotFoundError):
        return False
    backend, levels = report["backend"], report["levels"]
    granted = all(levels[level] == "granted" for level in _LEVELS) and report["text_core"] == "granted"
    return bool(granted and backend["devices"] and backend["version"] == importlib.import_module(package).__version__)
