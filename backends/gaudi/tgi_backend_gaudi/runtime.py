"""`torch.hpu` with the signatures of torch's other device modules, as far as the kit needs them, and the bridge's counters.

It has no `empty_cache`, its `synchronize` and `is_bf16_supported` take no argument, and a process has one device.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch


class HabanaRuntime:
    """See `Runtime`."""

    def __init__(self, hpu: Any) -> None:
        self._hpu = hpu
        self._metrics = importlib.import_module("habana_frameworks.torch.hpu.metrics")

    def device_count(self) -> int:
        """The devices that this process and its siblings may use."""
        return int(self._hpu.device_count())

    def get_device_name(self, device: torch.device) -> str:
        """GAUDI2, GAUDI3."""
        return str(self._hpu.get_device_name())

    def set_device(self, device: torch.device) -> None:
        """Acquire the process's device."""
        self._hpu.set_device(device)

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Always."""
        return bool(self._hpu.is_bf16_supported())

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        """(free, total) in bytes."""
        free, total = self._hpu.mem_get_info()
        return int(free), int(total)

    def empty_cache(self) -> None:
        """Nothing: what torch has freed counts as free there."""

    def mark(self) -> Any:
        """An event at the end of the process's stream."""
        event = self._hpu.Event()
        event.record()
        return event

    def compiled(self) -> int:
        """Recipes that were compiled in this process."""
        return int(dict(self._metrics.metric_global("graph_compilation").stats()).get("TotalNumber", 0))
