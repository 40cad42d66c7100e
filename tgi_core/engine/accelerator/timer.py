"""Times work on an accelerator by the events of a stream; see `tgi_core.engine.attention.timing`."""

from __future__ import annotations

from tgi_core.engine.accelerator.queue import StreamQueue
from tgi_core.engine.device_queue import CannotCapture, Work

RUNS = 10
"""How often the work is enqueued between two events, so that the device does not wait for the host in between."""

ROUNDS = 3
"""The least time of so many counts: other processes can only slow one down."""


class StreamTimer:
    """A `Timer` over a queue."""

    def __init__(self, queue: StreamQueue) -> None:
        self._queue, self._graphs = queue, queue.graphs()

    @property
    def captures(self) -> bool:
        """As the queue does."""
        return not isinstance(self._graphs, str)

    def run(self, work: Work) -> float:
        """Seconds of the work, once its kernels are compiled and its libraries initialized. Raises the device's failure."""
        self._queue.wait()  # what prepared the work may be in another stream
        self._queue.run(work)
        return self._least(lambda: _repeat(work))

    def replay(self, work: Work) -> float:
        """Seconds of the captured work, without what the host does for it. Raises CannotCapture, and the device's failure."""
        if isinstance(self._graphs, str):
            raise CannotCapture(self._graphs)
        self._queue.wait()
        graph = self._graphs.capture(lambda: _repeat(work))
        try:
            self._queue.run(graph.replay)
            return self._least(graph.replay)
        finally:
            self._graphs.release()

    def _least(self, repeated: Work) -> float:
        return min(self._queue.elapsed(repeated) for _ in range(ROUNDS)) / RUNS


def _repeat(work: Work) -> None:
    for _ in range(RUNS):
        work()
