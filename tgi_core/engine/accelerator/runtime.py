"""torch's module for one kind of device, as far as it is needed here: what `torch.get_device_module` returns."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Runtime(Protocol):
    """Memory, streams and events of a kind of device. Sizes in bytes."""

    Stream: Any
    Event: Any

    def device_count(self) -> int:
        """How many devices this process may use."""

    def get_device_name(self, device: torch.device) -> str:
        """What the vendor calls it."""

    def set_device(self, device: torch.device) -> None:
        """Make it the current one of this thread."""

    def device(self, device: torch.device) -> AbstractContextManager[None]:
        """Make it the current one inside."""

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        """Make the stream the current one inside."""

    def current_stream(self, device: torch.device) -> Any:
        """The stream that operators of this thread go to."""

    def synchronize(self, device: torch.device) -> None:
        """Wait until the device has done all it was given."""

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Whether the current device computes bfloat16, or does as if."""

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        """(free, total), as the driver counts for all processes."""

    def empty_cache(self) -> None:
        """Give back to the driver what torch keeps for nobody."""

    def memory_allocated(self, device: torch.device) -> int:
        """What tensors take."""

    def memory_reserved(self, device: torch.device) -> int:
        """What torch has of the driver: for tensors, for graphs, and for nobody yet."""

    def max_memory_allocated(self, device: torch.device) -> int:
        """The most that they took since the last reset."""

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        """Begin to count the most anew."""
