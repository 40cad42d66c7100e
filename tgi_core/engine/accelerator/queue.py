"""The queue of an accelerator: one stream, its events, captured graphs. See `tgi_core.engine.device_queue`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from tgi_core.backend import BackendError, PeerLost
from tgi_core.engine.accelerator.graph_pool import abandon_pool, syncs_refused
from tgi_core.engine.accelerator.runtime import Runtime
from tgi_core.engine.collectives import reached
from tgi_core.engine.device_queue import CannotCapture, StepSampler, Usage, Work

Translate = Callable[[Exception], BackendError | None]
"""The contract's error for one of the device's own."""


class TorchGraph(Protocol):
    """A graph of torch's device modules, such as `CUDAGraph`."""

    def capture_begin(self, pool: Any = ..., capture_error_mode: str = ...) -> None:
        """Start capturing the current stream."""

    def capture_end(self) -> None:
        """End the capture. Raises if something cannot be captured."""

    def replay(self) -> None:
        """Enqueue it on the current stream again."""


NewGraph = Callable[[], TorchGraph]


class DeviceEvent(Protocol):
    """An event in a device's stream, as in torch's device modules."""

    def synchronize(self) -> None:
        """Wait until everything before it is done. Raises RuntimeError if that failed."""

    def query(self) -> bool:
        """Whether everything before it is done. Raises RuntimeError if that failed."""


class StreamEvent:
    """An event in the stream."""

    def __init__(self, event: DeviceEvent, translate: Translate, patience_s: float | None = None) -> None:
        self._event, self._translate, self._patience_s = event, translate, patience_s

    def wait(self) -> None:
        """Wait until everything enqueued before is done. Raises its failure; PeerLost if that takes longer than the queue has patience."""
        try:
            if self._patience_s is None:
                self._event.synchronize()
            elif not reached(self._event, self._patience_s):
                raise PeerLost(f"another rank is gone, or needs more than {self._patience_s} s for its part of a step")
        except RuntimeError as error:
            raise self._translate(error) or error from error


class StreamGraph:
    """Captured work, replayed in the queue's stream."""

    def __init__(self, graph: TorchGraph, queue: StreamQueue) -> None:
        self._graph, self._queue = graph, queue

    def replay(self) -> None:
        """Enqueue the work again."""
        self._queue.run(self._graph.replay)


class StreamGraphs:
    """Captures graphs that share one pool."""

    def __init__(self, queue: StreamQueue, new: NewGraph) -> None:
        self._queue, self._new = queue, new
        self._pool: Any = None

    def capture(self, work: Work) -> StreamGraph:
        """Run the work, once normally and once with waits for the device refused, then capture it. Raises CannotCapture, OutOfMemory, or
        the device's permanent failure.
        """
        self._queue.run(work)
        self._queue.wait()
        graph = self._new()
        try:
            with syncs_refused(self._queue.runtime):  # names the wait, which a capture only calls invalid
                self._queue.run(work)
            self._queue.wait()
            self._queue.run(lambda: self._record(graph, work))
        except RuntimeError as error:
            found = self._queue.translated(error)
            if found is not None and not _is_refusal(error):
                raise found from error
            raise CannotCapture(" ".join(str(error).split())[:300]) from error
        return StreamGraph(graph, self._queue)

    def _record(self, graph: TorchGraph, work: Work) -> None:
        if self._pool is None:
            self._pool = self._queue.runtime.graph_pool_handle()
        # Other threads may allocate or wait in the meantime; that must not fail this capture.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            try:
                work()
            finally:
                graph.capture_end()
        except BaseException:
            abandon_pool(self._queue.device, self._pool)
            self._pool = None
            raise

    def release(self) -> None:
        """Drop the pool; it is freed with the last of its graphs."""
        self._pool = None


class StreamQueue:
    """A stream of one device."""

    def __init__(
        self,
        runtime: Runtime,
        device: torch.device,
        translate: Translate,
        new_graph: NewGraph | str,
        sampler: StepSampler,
        in_flight: int = 2,
    ) -> None:
        self.in_flight = in_flight
        self.patience_s: float | None = None
        """How long to wait for work in which other ranks take part; None: as long as it takes."""
        self.runtime, self.device, self._translate = runtime, device, translate
        self._new_graph, self._sampler = new_graph, sampler
        self._stream = runtime.Stream(device)
        self._stream.wait_stream(runtime.current_stream(device))  # what was loaded before

    def run(self, work: Work) -> None:
        """Enqueue what the work enqueues, with this device and stream current."""
        with self.runtime.device(self.device), self.runtime.stream(self._stream):
            work()

    def host(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count] zeros in memory that the device reads and writes by itself."""
        return torch.zeros(count, dtype=dtype).pin_memory()

    def record(self) -> StreamEvent:
        """An event at the current end of the queue."""
        event = self.runtime.Event()
        event.record(self._stream)
        return StreamEvent(event, self._translate, self.patience_s)

    def graphs(self) -> StreamGraphs | str:
        """A new `GraphCapturer`, or why there is none."""
        return self._new_graph if isinstance(self._new_graph, str) else StreamGraphs(self, self._new_graph)

    def sampler(self) -> StepSampler:
        """As the kit chose it."""
        return self._sampler

    def wait(self) -> None:
        """Wait until the device is done."""
        self.runtime.synchronize(self.device)

    def elapsed(self, work: Work) -> float:
        """Run the work, wait, and return the seconds that the device took by its own clock. Raises its failure."""
        begin, end = (self.runtime.Event(enable_timing=True) for _ in range(2))
        begin.record(self._stream)
        self.run(work)
        end.record(self._stream)
        StreamEvent(end, self._translate, self.patience_s).wait()
        return float(begin.elapsed_time(end)) / 1000

    def measured(self, work: Work) -> Usage:
        """Run the work, wait, and return the memory that it took."""
        self.wait()
        self.runtime.empty_cache()
        self.runtime.reset_peak_memory_stats(self.device)
        reserved, free = self.runtime.memory_reserved(self.device), self.runtime.mem_get_info(self.device)[0]
        self.run(work)
        self.wait()
        peak = self.runtime.max_memory_reserved(self.device)  # of tensors, with rounding and gaps between them
        self.runtime.empty_cache()
        # A graph's pool stays reserved even with no tensor left in it; only the driver counts its own part of a graph.
        kept = max(self.runtime.memory_reserved(self.device) - reserved, free - self.runtime.mem_get_info(self.device)[0])
        return Usage(peak - reserved, max(0, kept))

    def translated(self, error: Exception) -> BackendError | None:
        """The contract's error for one of the device's own."""
        return self._translate(error)


def _is_refusal(error: Exception) -> bool:
    """Whether the error only says that the work cannot be captured, which is not a device fault."""
    return "captur" in str(error).lower()
