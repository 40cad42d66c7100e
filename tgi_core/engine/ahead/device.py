"""An asynchronous device and the model on it, for warmup and self-checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tgi_core.engine.ahead.graphs import StepGraphs
from tgi_core.engine.ahead.steps import DeviceSteps
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.device_queue import DeviceQueue
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import CapturableRunner, Runner
from tgi_core.engine.self_check import SelfCheckable

T = TypeVar("T")


class AheadRunner(CapturableRunner, Runner, SelfCheckable, Protocol):
    """A runner whose steps can be enqueued."""


@dataclass(frozen=True, slots=True)
class QueuedDevice:
    """The device's kit, its queue, and the shape of the model."""

    kit: DeviceKit
    queue: DeviceQueue
    shape: ModelShape

    def now(self, work: Callable[[], T]) -> T:
        """Run work on the device and wait for it; its result."""
        found: list[T] = []
        self.queue.run(lambda: found.append(work()))
        self.queue.record().wait()
        return found[0]

    def steps(self, runner: AheadRunner, rows: int, row_tokens: int) -> DeviceSteps:
        """Steps of up to `rows` rows over the runner's cache."""
        width = -(-row_tokens // runner.block_size)
        return self.now(lambda: DeviceSteps(runner, self.queue, self.kit.device, rows, width, self.shape.vocab_size))

    def graphs(self, steps: DeviceSteps) -> StepGraphs | str:
        """Buffers for captured steps, or why there are none; the caller captures."""
        return self.now(steps.use_graphs)
