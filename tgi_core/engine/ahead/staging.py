"""Pinned host memory: buffers in turn, so that one is filled while the device uses others."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from tgi_core.engine.ahead.in_flight import InFlight
from tgi_core.engine.device_queue import DeviceQueue


class StagingBuffer:
    """One step's inputs and results. `step` is the step that uses it."""

    def __init__(self, queue: DeviceQueue, words: int, rows: int) -> None:
        self._queue = queue
        self._inputs = queue.host(words, torch.int32)
        self._results = queue.host(2 * rows, torch.int32)
        self.step: InFlight | None = None

    def inputs(self, words: int) -> Tensor:
        """[words] to fill; grows for larger steps."""
        if len(self._inputs) < words:
            self._inputs = self._queue.host(max(words, 2 * len(self._inputs)), torch.int32)
        return self._inputs[:words]

    def results(self, words: int) -> Tensor:
        """[words] for the device to write; grows for larger steps."""
        if len(self._results) < words:
            self._results = self._queue.host(max(words, 2 * len(self._results)), torch.int32)
        return self._results[:words]


class Staging:
    """The buffers: two, unless more work than that of two steps is under way."""

    def __init__(self, queue: DeviceQueue, words: int, rows: int, count: int = 2) -> None:
        self._places = deque([StagingBuffer(queue, words, rows) for _ in range(count)])

    def next(self) -> StagingBuffer:
        """A buffer that the device does not use any more: waits for the step that used it, and copies its results out."""
        self._places.rotate(1)
        place = self._places[0]
        if place.step is not None:
            place.step.settle()
            place.step = None
        return place
