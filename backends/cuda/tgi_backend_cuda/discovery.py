"""Detects NVIDIA devices without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tgi_backend_cuda.nvml import Card, NoNvml, read_cards
from tgi_core.backend import Probe, ProbeStatus
from tgi_core.engine.accelerator.discovery import Device, TorchRequirement, hidden_by, probe_result, visible
from tgi_core.engine.accelerator.torch_build import torch_build

VISIBLE = "CUDA_VISIBLE_DEVICES"
OLDEST = (7, 5)
"""The oldest compute capability that current builds of torch and Triton have code for."""

WANTED = TorchRequirement(
    "cuda", "build for CUDA", "pip install torch --index-url https://download.pytorch.org/whl/cu130, or as the driver needs"
)
_ABSENT = Probe(
    ProbeStatus.ABSENT,
    reason="no NVIDIA device: there is no /dev/nvidia0 or the like, and no driver",
    hint="install the device's driver; a container must be started with --gpus all",
)
_NO_DRIVER = "install the driver; a container must be started with --gpus all, by NVIDIA's container toolkit"

Cards = tuple[Sequence[Card], tuple[int, int]]
"""The driver's devices, and the newest CUDA that it runs."""


def probe(root: Path = Path("/"), environment: Mapping[str, str] = os.environ, read: Callable[[], Cards] = read_cards) -> Probe:
    """The probe's result from the system's files under `root` and the driver's report."""
    devices = find_devices(root, read)
    asked = environment.get(VISIBLE)
    if asked and asked.startswith("MIG-") and devices:
        return probe_result([Device(asked)], "", _ABSENT, WANTED, "tgi_backend_cuda")
    hidden = hidden_by(devices, (VISIBLE,), environment)
    return probe_result(visible(devices, asked), hidden, _ABSENT, WANTED, "tgi_backend_cuda")


def find_devices(root: Path, read: Callable[[], Cards]) -> list[Device]:
    """Devices in the driver's order; if it does not respond, their device files with the reason, if there are any."""
    nodes = sorted(root.glob("dev/nvidia[0-9]*")) or list(root.glob("dev/dxg"))
    try:
        cards, newest = read()
    except NoNvml as error:
        return [Device(f"NVIDIA device {node.name}", trouble=str(error), hint=_NO_DRIVER) for node in nodes]
    return [_device(card, newest) for card in cards]


def _device(card: Card, newest: tuple[int, int]) -> Device:
    name = f"{card.name}, {card.num_bytes / 2**30:.0f} GiB, compute capability {card.capability[0]}.{card.capability[1]}"
    if card.capability < OLDEST:
        needed = f"{OLDEST[0]}.{OLDEST[1]}"
        return Device(name, card.uuid, f"older than compute capability {needed}, which kernels need", "choose --backend cpu")
    built = torch_build().get("cuda", "")
    # Within a major version of CUDA every driver runs every toolkit.
    if built and int(built.partition(".")[0]) > newest[0]:
        trouble = f"its driver runs CUDA up to {newest[0]}.{newest[1]}, and torch is built for {built}"
        return Device(name, card.uuid, trouble, f"update the driver, or install torch for CUDA {newest[0]}")
    return Device(name, card.uuid)
