"""Where the sections run: a device by its backend, and how large their problems are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tgi_core.engine.device import DeviceKit

Figures = dict[str, float | str]
"""A section's findings: by name, a number with its unit in the name, or a sentence."""


@dataclass(frozen=True, slots=True)
class Place:
    """A backend, sizes full or small, and a folder for models."""

    backend: str
    small: bool
    folder: Path
    deadline: float
    """Of `time.time`."""

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.time()

    def kit(self) -> DeviceKit:
        """The backend's own kit, for the first device."""
        if self.backend == "cpu":
            from tgi_backend_cpu.kit import CpuKit

            return CpuKit(torch.get_num_threads(), 0.5)
        from tgi_backend_cuda.kit import CudaKit

        return CudaKit(0, 0.9)

    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Those that kernels are checked in."""
        return (torch.float32, torch.bfloat16) if self.backend == "cpu" else (torch.float32, torch.bfloat16, torch.float16)


def seconds(device: torch.device, work: Callable[[], Any], repeats: int = 20) -> float:
    """The median time of some work, after two runs to warm up; the device is waited for around each."""
    module = torch.get_device_module(device)
    times = []
    for run in range(repeats + 2):
        module.synchronize()
        start = time.perf_counter()
        work()
        module.synchronize()
        if run > 1:
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def quiet(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody watches."""
