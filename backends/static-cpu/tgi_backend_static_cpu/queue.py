"""A queue that does nothing until something waits for it: as late as a device may be."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext

import torch
from torch import Tensor

from tgi_backend_static_cpu.program_guard import BetweenPrograms
from tgi_core.backend import BackendError
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.device_queue import GraphCapturer, StepSampler, Usage, Work
from tgi_core.engine.failures import TORCH_ERRORS
from tgi_core.engine.static import steps


class LateEvent:
    """An event in the queue."""

    def __init__(self, queue: LateQueue, end: int) -> None:
        self._queue, self._end = queue, end

    def wait(self) -> None:
        """Have the device do everything before it. Raises what the last of that failed with."""
        self._queue.do(self._end)


class LateQueue:
    """Work that is only done when something waits for it, one step ahead."""

    in_flight = 2

    def __init__(self) -> None:
        self._given: deque[Work] = deque()
        self._done = 0
        self._failed: dict[int, Exception] = {}

    def run(self, work: Work) -> None:
        """Append work."""
        self._given.append(work)

    def do(self, end: int) -> None:
        """Do all work before an event."""
        while self._done < end:
            work = self._given.popleft()
            self._done += 1
            # Other calls are the host's own: its tensors are on the same CPU.
            watch = BetweenPrograms() if work.__module__ == steps.__name__ else nullcontext()
            try:
                with watch:
                    work()
            except (BackendError, *TORCH_ERRORS) as error:
                self._failed[self._done] = error
        if end in self._failed:
            raise self._failed[end]

    def host(self, count: int, dtype: torch.dtype) -> Tensor:
        """Plain memory."""
        return torch.zeros(count, dtype=dtype)

    def record(self) -> LateEvent:
        """An event at the current end."""
        return LateEvent(self, self._done + len(self._given))

    def graphs(self) -> GraphCapturer | str:
        """None: programs replace them."""
        return "it runs programs"

    def sampler(self) -> StepSampler:
        """torch's."""
        return TorchSampler()

    def measured(self, work: Work) -> Usage:
        """Run the work; memory is not counted on a CPU."""
        self.run(work)
        self.record().wait()
        return Usage(0, 0)

    def translated(self, error: Exception) -> BackendError | None:
        """The emulated device has no errors of its own."""
        return None
