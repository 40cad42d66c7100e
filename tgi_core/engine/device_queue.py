"""The queue of an asynchronous device: it takes work in order and runs it later.

On torch's accelerators this is a stream, with its events and captured graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend import BackendError
from tgi_core.engine.logits_processing import ProcessedInputs
from tgi_core.engine.row_filters import RowFilters

Work = Callable[[], None]
"""A function that enqueues: it calls operators and kernels on the device's tensors, and never synchronizes."""


class CannotCapture(Exception):
    """Work cannot be captured; the text says why. The attempt is undone, and the queue remains usable."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of device memory that some work took: `peak` while it ran, `kept` after it was done.

    The pool of a graph counts as kept, whether or not a tensor is in it.
    """

    peak: int
    kept: int


class Event(Protocol):
    """A point in the queue."""

    def wait(self) -> None:
        """Return when everything enqueued before the event is done. Raises its failure."""


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Within work of `DeviceQueue.run`: enqueue the captured work again, over the same tensors, without running its Python."""


class GraphCapturer(Protocol):
    """Captures work. Its graphs share one memory pool and are replayed one after another; the largest is captured first."""

    def capture(self, work: Work) -> Graph:
        """Wait for the device, run the work once, so that its kernels are compiled and its libraries initialized, then capture it.

        Must not be called within work of `run`. Raises CannotCapture with the reason, OutOfMemory.
        """

    def release(self) -> None:
        """Free the pool; its graphs must not be replayed any more. Idempotent."""


class StepSampler(Protocol):
    """Samples plain rows on a device, by the published formula. It can be captured."""

    name: str
    precision: torch.dtype
    """The dtype of temperatures, in which draws are computed: float64 gives exactly the formula's tokens."""
    lean_draws: bool
    """Whether draws cost almost nothing on top of the argmax. If not, steps without draws get their own graphs."""

    filters: bool
    """Whether it samples rows with top-k, top-p and min-p."""

    processes: bool
    """Whether it also samples rows whose logits are processed first; see `tgi_core.engine.logits_processing`."""

    def choose(
        self, logits: Tensor, temperatures: Tensor | None, uniforms: Tensor, filters: RowFilters | None = None
    ) -> tuple[Tensor, Tensor]:
        """A token per row of logits [rows, vocabulary], int64 [rows], and its logprob, float32 [rows].

        The argmax (of equal ones the lowest id) if the temperature is 0; otherwise the draw at the row's uniform number (float32 [rows])
        from what its `filters` keep, which are passed if the sampler supports them. `temperatures` is None if no row draws, except with
        `lean_draws`. A row whose logits are not all finite has token −1.
        """

    def choose_processed(
        self, logits: Tensor, inputs: ProcessedInputs, counts: Tensor, newest: Tensor, results: Tensor, typical: bool
    ) -> None:
        """If it `processes`: sample rows of logits [logits, vocabulary] by the published formula, each from its own place.

        `results` int32 [2 · rows] gets their tokens and the bits of their logprobs. A token of −1 says that logits were not finite, −2 that
        penalties or biases made them so, −3 that the mask allows no token. What follows there, [2, rows, most], gets the `inputs.top_n`
        likeliest tokens, −1 where fewer are possible, and the bits of their logprobs. The token of a row slot goes to `newest` int64 [row
        slots], and is counted in `counts` int32 [row slots, vocabulary] (see `IN_PROMPT`). `typical`: whether some row has typical-p.
        """


class DeviceQueue(Protocol):
    """The queue of one device. Everything the engine does on the device after loading goes through `run`, from one thread."""

    in_flight: int
    """Number of steps that the core may leave unread: 2 is one step ahead, 1 is lock step, for comparison."""

    def run(self, work: Work) -> None:
        """Run the work with this device and stream current; it enqueues. Does not wait."""

    def host(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count] zeros on the host, pinned: `Tensor.copy_(…, non_blocking=True)` from and to them runs in the queue."""

    def record(self) -> Event:
        """An event at the current end of the queue."""

    def graphs(self) -> GraphCapturer | str:
        """A new `GraphCapturer` with its own pool, or why this device has none or the operator has switched it off."""

    def sampler(self) -> StepSampler:
        """The sampler of plain rows on the device."""

    def measured(self, work: Work) -> Usage:
        """Run the work, wait for the device, and return the memory that it took. Unused memory in the framework's cache is freed before and
        after, so that `DeviceKit.free_bytes` counts it."""

    def translated(self, error: Exception) -> BackendError | None:
        """The contract's error for a device error: OutOfMemory, DeviceLost; None for other errors."""
