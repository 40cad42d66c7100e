"""`torch.hpu`."""

import os
import time
from types import ModuleType, TracebackType
from typing import Any

import torch

DEVICES = 2


class Stream:
    """The one stream."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = device


class StreamContext:
    """What `stream` returns."""

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing."""


class Event:
    """A place in the stream; all before it is done."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.recorded = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Here."""
        self.recorded = time.monotonic()

    def synchronize(self) -> None:
        """Wait."""
        assert self.recorded, "an event that was never recorded"

    def query(self) -> bool:
        """It is done."""
        return True


def is_available() -> bool:
    """There are some."""
    return True


def device_count() -> int:
    """How many."""
    return DEVICES


def set_device(device: Any) -> None:
    """Acquires it."""
    if os.environ.get("STANDIN_TAKEN"):
        raise RuntimeError("synStatus=8 [Device not found] Device acquire failed.")
    assert torch.device(device).index == 0, "a process has one device"


def current_device() -> int:
    """The process's."""
    return 0


def synchronize() -> None:
    """Wait."""


def get_device_name(device: Any = None) -> str:
    """As the real one."""
    return "GAUDI2"


def is_bf16_supported() -> bool:
    """It is."""
    return True


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total)."""
    total = int(os.environ.get("STANDIN_BYTES", 32 << 30))
    return total, total


def memory_stats(device: Any = None) -> dict[str, int]:
    """By name."""
    return {"Limit": mem_get_info()[1], "InUse": 0, "MaxInUse": 0}


def memory_allocated(device: Any = None) -> int:
    """Nothing is counted."""
    return 0


def max_memory_allocated(device: Any = None) -> int:
    """Nothing is counted."""
    return 0


def memory_reserved(device: Any = None) -> int:
    """Always the limit."""
    return mem_get_info()[1]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Nothing is counted."""


def stream(stream: Stream) -> StreamContext:
    """Make it the current one."""
    return StreamContext()


def current_stream(device: Any = None) -> Stream:
    """The one stream."""
    return Stream(device)


class DeviceModule(ModuleType):
    """`torch.hpu`: these names and no others."""


device_module = DeviceModule("torch.hpu")
for each in (
    Event,
    Stream,
    current_device,
    current_stream,
    device_count,
    get_device_name,
    is_available,
    is_bf16_supported,
    max_memory_allocated,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    set_device,
    stream,
    synchronize,
):
    setattr(device_module, each.__name__, each)
