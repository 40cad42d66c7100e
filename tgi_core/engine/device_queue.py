"""What a device package gives for a device that works behind the host: it takes work in order, and does it later.

On torch's accelerators this is a stream, with events as marks and captured graphs of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend import BackendError

Work = Callable[[], None]
"""Python that enqueues: it calls operators and kernels on the device's tensors, and asks the device for nothing."""


class CannotCapture(Exception):
    """Work cannot be made a graph, and why; what was tried is undone, and the queue goes on."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of the device's memory that some work took: `peak` at once while it ran, `kept` of them still when it was done.

    What the pool of a graph has taken from the device is kept, whether or not a tensor lies there now.
    """

    peak: int
    kept: int


class Mark(Protocol):
    """A place in the queue."""

    def wait(self) -> None:
        """Return when all that was enqueued before the mark is done. Raises what that failed with."""


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Within work of `DeviceQueue.run`: enqueue the captured work again, over the very same tensors, without running its Python."""


class GraphMaker(Protocol):
    """Captures work. Its graphs share one pool of memory and are replayed one after another; the largest is captured first."""

    def capture(self, work: Work) -> Graph:
        """Have the device do what it was given; run the work once, so that its kernels are compiled and its libraries set up; capture it.

        Not within work of `run`. Raises CannotCapture with the reason, OutOfMemory.
        """

    def release(self) -> None:
        """Give the pool back; the graphs are not replayed any more. Idempotent."""


class StepSampler(Protocol):
    """A device's way to choose plain rows' tokens by the published formula. It can be captured."""

    precision: torch.dtype
    """The dtype of temperatures, in which draws are computed: float64 makes the formula's very tokens."""
    lean_draws: bool
    """Whether draws cost next to nothing beside the argmax. Where they don't, steps without draws get graphs of their own."""

    def choose(self, logits: Tensor, temperatures: Tensor | None, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """A token per row of logits [rows, vocabulary], int64 [rows], and its logprob, float32 [rows].

        The argmax, of equal ones the lowest id, where the temperature is 0; elsewhere the draw at the row's uniform number (float32
        [rows]). `temperatures` of None says that no row draws, which is not said where `lean_draws`. A row whose logits are not all
        finite has token −1.
        """


class DeviceQueue(Protocol):
    """The queue of one device. Everything the engine does on the device after loading goes through `run`, from one thread."""

    in_flight: int
    """How many steps the core may leave unread: 2 is one step ahead, 1 is lock step (a switch, to measure what it brings)."""

    def run(self, work: Work) -> None:
        """Enqueue what the work enqueues, with this device and stream current. Does not wait."""

    def host(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count] zeros on the host, in memory from and to which `Tensor.copy_(…, non_blocking=True)` is one entry of the queue."""

    def mark(self) -> Mark:
        """The end of the queue as it is now."""

    def graphs(self) -> GraphMaker | str:
        """A new maker of graphs with a pool of its own, or why there is none on this device (a switch is a reason too)."""

    def sampler(self) -> StepSampler:
        """What chooses plain rows' tokens on the device."""

    def measured(self, work: Work) -> Usage:
        """Run the work, wait for the device, and say what memory it took. Memory that the framework keeps for nobody is given back
        to the device before and after, so that `DeviceKit.free_bytes` counts it as free."""

    def translated(self, error: Exception) -> BackendError | None:
        """The contract's error for one of the device's own: OutOfMemory, DeviceLost; None for all others."""
