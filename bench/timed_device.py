"""A device that computes nothing: a step takes a set time, and its tokens are all 0. What a session over it takes is the host's time.

Its clock is virtual: the CPU time of this thread, plus the time that it would have waited for the device. What else runs on the machine
does not count. It captures "graphs" without running them.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from tgi_core.backend import BackendError, CacheGroup, CacheKind, Capacity, Feature, Kernel, Progress, WarmupPlan
from tgi_core.engine.ahead.device import QueuedDevice
from tgi_core.engine.ahead.graphs import StepGraphs
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.ahead.session import AheadSession
from tgi_core.engine.ahead.steps import StepEnqueuer
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.device_queue import GraphCapturer, StepSampler, Usage, Work
from tgi_core.engine.logits_processing import ProcessedInputs
from tgi_core.engine.models.shape import ModelShape

BLOCK_SIZE = 16


class Clock:
    """Seconds of CPU time of this thread and of waiting."""

    def __init__(self) -> None:
        self._waited_s = 0.0

    def now(self) -> float:
        """The time."""
        return time.thread_time() + self._waited_s

    def wait(self, until: float) -> None:
        """Advance to a time, if it is in the future."""
        self._waited_s += max(0.0, until - self.now())


class AllSampler(TorchSampler):
    """Claims to sample all that a device with our kernels samples; nothing is ever run."""

    lean_draws = True
    filters = True
    processes = True

    def choose_processed(
        self, logits: Tensor, inputs: ProcessedInputs, counts: Tensor, newest: Tensor, results: Tensor, typical: bool
    ) -> None:
        """Tokens 0."""
        results.zero_()


class TimedEvent:
    """When the work before it is done."""

    def __init__(self, clock: Clock, at: float) -> None:
        self._clock, self._at = clock, at

    def wait(self) -> None:
        """Wait until then."""
        self._clock.wait(self._at)


class TimedGraph:
    """A captured step: a time."""

    def __init__(self, queue: TimedQueue) -> None:
        self._queue = queue

    def replay(self) -> None:
        """Keep the device busy."""
        self._queue.compute()


class TimedGraphs:
    """Captures nothing."""

    def __init__(self, queue: TimedQueue) -> None:
        self._queue = queue

    def capture(self, work: Work) -> TimedGraph:
        """A graph that takes the device's time."""
        return TimedGraph(self._queue)

    def release(self) -> None:
        """There is no pool."""


class TimedQueue:
    """See `DeviceQueue`. `idle_s` is how long the device has waited for the host between steps, `busy_s` how long it has computed."""

    in_flight = 2

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._clock = Clock()
        self._free_at: float | None = None
        self.idle_s = self.busy_s = 0.0

    def compute(self) -> None:
        """Enqueue a step's time."""
        now = self._clock.now()
        begin = now if self._free_at is None else max(now, self._free_at)
        self.idle_s += 0.0 if self._free_at is None else begin - self._free_at
        self.busy_s += self._step_s
        self._free_at = begin + self._step_s

    def start_over(self) -> None:
        """Forget what was measured."""
        self._free_at, self.idle_s, self.busy_s = None, 0.0, 0.0

    def run(self, work: Work) -> None:
        """At once: it copies on the host, and replays."""
        work()

    def host(self, count: int, dtype: torch.dtype) -> Tensor:
        """Plain memory."""
        return torch.zeros(count, dtype=dtype)

    def record(self) -> TimedEvent:
        """When what was enqueued so far is done."""
        return TimedEvent(self._clock, self._free_at or 0.0)

    def graphs(self) -> GraphCapturer | str:
        """Times instead of graphs."""
        return TimedGraphs(self)

    def sampler(self) -> StepSampler:
        """That of a device with our kernels."""
        return AllSampler()

    def measured(self, work: Work) -> Usage:
        """Nothing is."""
        return Usage(0, 0)

    def translated(self, error: Exception) -> BackendError | None:
        """It has no errors."""
        return None


class NullRunner:
    """A model that computes nothing; see `CapturableRunner`."""

    cache_dtype = "auto"
    features = frozenset({Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE})
    kernels: tuple[Kernel, ...] = ()
    block_sizes = (BLOCK_SIZE,)
    block_size = BLOCK_SIZE
    captures_prompts = True

    def forward(self, step: StepMetadata, keep: Tensor | None) -> Tensor:
        """Logits of a few tokens, of prompts, which are not captured."""
        return torch.zeros(len(step.input_ids) if keep is None else len(keep), 8)

    def release(self) -> None:
        """Nothing is held."""


def open_timed(queue: TimedQueue, rows: int, row_tokens: int, vocab_size: int, **options: Any) -> AheadSession:
    """A session of that many rows over the device, to be warmed up; `options` are those of `AheadSession`."""
    runner: Any = NullRunner()
    kit: Any = type("Kit", (), {"device": torch.device("cpu")})
    shape = ModelShape(torch.bfloat16, vocab_size, row_tokens, 1, 1, 0)
    device = QueuedDevice(kit, queue, shape)

    def warm(plan: WarmupPlan, progress: Progress) -> tuple[StepEnqueuer, Capacity]:
        steps = device.steps(runner, rows, row_tokens)
        graphs = device.graphs(steps)
        if isinstance(graphs, StepGraphs):
            list(graphs.capture())
            graphs.memory.logits = torch.zeros(1, 8)
        blocks = rows * -(-row_tokens // BLOCK_SIZE)
        group = CacheGroup(CacheKind.FULL, BLOCK_SIZE, blocks)
        return steps, Capacity((group,), rows, row_tokens, 8192, rows, in_flight=queue.in_flight)

    return AheadSession(runner, device, None, graphs=Kernel("graphs", "decode steps"), warm=warm, **options)
