"""The queue of a device for which torch itself runs everything in order, with programs in place of graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tgi_core.backend import BackendError
from tgi_core.engine.accelerator.queue import DeviceEvent, StreamEvent, Translate
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.device_queue import GraphCapturer, StepSampler, Usage, Work


class PlainQueue:
    """See `DeviceQueue`. `mark` records an event at the end of the device's stream."""

    def __init__(self, mark: Callable[[], DeviceEvent], translate: Translate, in_flight: int) -> None:
        self.in_flight = in_flight
        self._mark, self._translate = mark, translate

    def run(self, work: Work) -> None:
        """Enqueue what the work enqueues."""
        work()

    def host(self, count: int, dtype: torch.dtype) -> Tensor:
        """Plain memory."""
        return torch.zeros(count, dtype=dtype)

    def record(self) -> StreamEvent:
        """An event at the current end of the stream."""
        return StreamEvent(self._mark(), self._translate)

    def graphs(self) -> GraphCapturer | str:
        """None."""
        return "it runs programs"

    def sampler(self) -> StepSampler:
        """torch's, for the argmax; such devices have no float64 for draws."""
        return TorchSampler(torch.float32)

    def measured(self, work: Work) -> Usage:
        """Run the work and wait; memory is estimated, not measured."""
        self.run(work)
        self.record().wait()
        return Usage(0, 0)

    def translated(self, error: Exception) -> BackendError | None:
        """The contract's error for one of the device's own."""
        return self._translate(error)
