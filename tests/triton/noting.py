"""A driver of a device that is not there: kernels are compiled for its chip as they would be, and launches are noted."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget

_DEVICES = count(4711)
"""Numbers that no device of this machine has. Each driver has its own: kernels keep what they compiled by it."""


class NotingDriver:
    """A driver of an H100 that is not there. `loaded` are the compiled kernels in turn, `launched` names and grids."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.launched: list[tuple[str, tuple[int, int, int]]] = []
        self._device = next(_DEVICES)
        self.utils = SimpleNamespace(load_binary=self._load, get_device_properties=lambda device: {"max_shared_mem": 227 << 10})

    def get_current_target(self) -> GPUTarget:
        """Compute capability 9.0."""
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """The number of its device."""
        return self._device

    def get_current_stream(self, device: int) -> int:
        """None but one."""
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Notes launches of one kernel."""
        return lambda x, y, z, *rest: self.launched.append((metadata.name, (x, y, z)))

    def _load(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[str, str, int, int, int]:
        self.loaded.append(name)
        return name, name, 0, 0, 1024
