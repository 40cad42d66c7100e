"""The part of torch's device modules (`torch.get_device_module`) that is used here."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Runtime(Protocol):
    """Memory, streams and events of one kind of device. Sizes are in bytes."""

    Stream: Any
    Event: Any

    def device_count(self) -> int:
        """Number of devices that this process may use."""

    def get_device_name(self, device: torch.device) -> str:
        """The vendor's name for the device."""

    def set_device(self, device: torch.device) -> None:
        """Make the device current in this thread."""

    def device(self, device: torch.device) -> AbstractContextManager[None]:
        """Make the device current inside."""

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        """Make the stream current inside."""

    def current_stream(self, device: torch.device) -> Any:
        """The stream that operators of this thread go to."""

    def synchronize(self, device: torch.device) -> None:
        """Wait until the device is idle."""

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Whether the current device computes bfloat16, possibly by emulation."""

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        """(free, total), as the driver counts them for all processes."""

    def empty_cache(self) -> None:
        """Free unused memory in torch's cache."""

    def memory_reserved(self, device: torch.device) -> int:
        """Bytes that torch has allocated from the driver: for tensors, graphs and its cache."""

    def max_memory_reserved(self, device: torch.device) -> int:
        """The peak of `memory_reserved` since the last reset."""

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        """Reset the peak."""

    def graph_pool_handle(self) -> Any:
        """A new pool for graphs."""
