"""Where the sections run: the backend, problem sizes and directories."""

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
"""A section's findings by name: a number, with its unit in the name, or a sentence."""


@dataclass(frozen=True, slots=True)
class Place:
    """A backend, full or small sizes, and a directory for models."""

    backend: str
    small: bool
    folder: Path
    deadline: float
    """As of `time.time`."""

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.time()

    def kit(self) -> DeviceKit:
        """The backend's toolkit for the first device."""
        if self.backend == "cpu":
            from tgi_backend_cpu.kit import CpuKit

            return CpuKit(torch.get_num_threads(), 0.5)
        from tgi_backend_cuda.kit import CudaKit

        return CudaKit(0, 0.9)

    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes in which kernels are checked."""
        return (torch.float32, torch.bfloat16) if self.backend == "cpu" else (torch.float32, torch.bfloat16, torch.float16)


def seconds(device: torch.device, work: Callable[[], Any], repeats: int = 20) -> float:
    """Median time of some work after two warm-up runs, synchronizing the device around each run."""
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
    """Ignore progress."""


def release_cached(device: torch.device) -> None:
    """Give memory that torch keeps for later back to the device, where there is such memory."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()
