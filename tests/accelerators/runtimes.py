"""A device module of torch that is none: it counts, and its streams and graphs are lists of what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class FakeStream:
    """Takes events, and waits for others."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime

    def wait_stream(self, other: FakeStream) -> None:
        """Behind the other."""
        self._runtime.log.append("wait for the loading stream")


class FakeEvent:
    """Raises at its wait what it was told."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime, self._recorded_s = runtime, 0.0

    def record(self, stream: FakeStream) -> None:
        """At the stream's end."""
        self._runtime.log.append("record")
        self._recorded_s = self._runtime.clock_s

    def elapsed_time(self, end: FakeEvent) -> float:
        """Milliseconds between the two."""
        return 1000 * (end._recorded_s - self._recorded_s)

    def synchronize(self) -> None:
        """Wait."""
        self._runtime.log.append("wait")
        if self._runtime.fault is not None:
            raise self._runtime.fault

    def query(self) -> bool:
        """Not unless the device does something."""
        return not self._runtime.stuck


class FakeRuntime:
    """A device of 100 GB, of which `used` are another's, and tensors of `allocated`."""

    def __init__(self, *, count: int = 1, bfloat16: bool = True, used: int = 0) -> None:
        self.count, self.bfloat16, self.used = count, bfloat16, used
        self.allocated, self.peak, self.cached, self.pooled, self.gaps = 0, 0, 0, 0, 0
        self.pools = 0
        self.fault: Exception | None = None
        self.stuck = False
        self.clock_s = 0.0
        self.log: list[str] = []

    def Stream(self, device: torch.device) -> FakeStream:
        """A new stream."""
        return FakeStream(self)

    def Event(self, enable_timing: bool = False) -> FakeEvent:
        """A new event."""
        return FakeEvent(self)

    def device_count(self) -> int:
        """As told."""
        return self.count

    def get_device_name(self, device: torch.device) -> str:
        """Of a device of no vendor."""
        return f"Device {device.index}"

    def set_device(self, device: torch.device) -> None:
        """Noted."""
        self.log.append(f"set {device}")

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        """Noted."""
        yield

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Noted, begin and end."""
        self.log.append("(")
        try:
            yield
        finally:
            self.log.append(")")

    def current_stream(self, device: torch.device) -> FakeStream:
        """Where the weights were loaded."""
        return FakeStream(self)

    def synchronize(self, device: torch.device) -> None:
        """Noted."""
        self.log.append("synchronize")

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """As told; emulated always."""
        return self.bfloat16 or including_emulation

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        """(free, total) in bytes."""
        return 100 * 10**9 - self.used - self.allocated - self.cached, 100 * 10**9

    def empty_cache(self) -> None:
        """What is cached is free again."""
        self.cached = 0

    def memory_reserved(self, device: torch.device) -> int:
        """That, what is cached, and what graphs keep."""
        return self.allocated + self.cached + self.pooled

    def max_memory_reserved(self, device: torch.device) -> int:
        """The most that tensors took, with the gaps between them and what graphs keep."""
        return self.peak + self.gaps + self.pooled

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        """Begin anew."""
        self.peak = self.allocated

    def graph_pool_handle(self) -> str:
        """The name of a new pool."""
        self.pools += 1
        return f"pool {self.pools}"

    def set_sync_debug_mode(self, mode: str) -> None:
        """Noted."""
        self.log.append(f"waits: {mode}")

    def take(self, num_bytes: int) -> None:
        """As if tensors of so many bytes had been made, or freed."""
        self.allocated += num_bytes
        self.peak = max(self.peak, self.allocated)


class FakeGraph:
    """Notes its calls, and takes as long as what was captured; `broken` is what ending the capture raises."""

    def __init__(self, runtime: FakeRuntime, broken: Exception | None = None) -> None:
        self._runtime, self._broken, self._takes_s = runtime, broken, 0.0

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """From here on."""
        self._runtime.log.append(f"capture with {pool}, {capture_error_mode}")
        self._takes_s = -self._runtime.clock_s

    def capture_end(self) -> None:
        """Up to here."""
        self._runtime.log.append("captured")
        self._takes_s += self._runtime.clock_s
        if self._broken is not None:
            raise self._broken

    def replay(self) -> None:
        """Again."""
        self._runtime.log.append("replay")
        self._runtime.clock_s += self._takes_s


def graphs_of(runtime: FakeRuntime, broken: Exception | None = None) -> Callable[[], FakeGraph]:
    """Makes graphs."""
    return lambda: FakeGraph(runtime, broken)
