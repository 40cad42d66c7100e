"""A device that is as late as it may be: torch's CPU behind a queue that does nothing until somebody waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.engine.ahead.recorded import RecordedGraphs
from tgi_core.backend import BackendError, DeviceLost, Kernel, Progress
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.attention.cache import KVCacheDtype
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.device_queue import GraphCapturer, StepSampler, Usage, Work
from tgi_core.engine.failures import TORCH_ERRORS
from tgi_core.engine.lora.layers import LoraKernel, TorchLoraKernel
from tgi_core.engine.lora.weights import LoraWeights
from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.quantization.torch_linear import TorchLinears


class LateEvent:
    """A place in the queue."""

    def __init__(self, queue: LateQueue, end: int) -> None:
        self._queue, self._end = queue, end

    def wait(self) -> None:
        """Have the device do everything before it."""
        self._queue.do(self._end)


class LateQueue:
    """Work that is done when it is waited for; `eager` does it at once. An error stays with the work that raised it."""

    def __init__(self, in_flight: int = 2, graphs: str | None = None, eager: bool = False) -> None:
        self.in_flight, self._graphs, self._eager = in_flight, graphs, eager
        self._given: deque[Work] = deque()
        self._done = 0
        self._failed: dict[int, Exception] = {}
        self.breaks: list[Exception] = []
        """What the next pieces of work fail with."""
        self.makers: list[RecordedGraphs] = []
        self.usages: list[Usage] = []
        """What is measured next: two large steps, then two captures."""

    @property
    def waiting(self) -> int:
        """How many pieces of work are not done."""
        return len(self._given)

    def run(self, work: Work) -> None:
        """Put work at the end."""
        self._given.append(work)
        if self._eager:
            self.do(self._done + len(self._given))

    def do(self, end: int) -> None:
        """Do the work before a place, and raise what the last of it failed with."""
        while self._done < end:
            work = self._given.popleft()
            self._done += 1
            try:
                if self.breaks:
                    raise self.breaks.pop(0)
                work()
            except (BackendError, *TORCH_ERRORS) as error:
                self._failed[self._done] = error
        if end in self._failed:
            raise self._failed[end]

    def host(self, count: int, dtype: torch.dtype) -> Tensor:
        """Plain memory."""
        return torch.zeros(count, dtype=dtype)

    def record(self) -> LateEvent:
        """The end as it is now."""
        return LateEvent(self, self._done + len(self._given))

    def graphs(self) -> GraphCapturer | str:
        """Recorded ones; `graphs` set is why there are none, or after "!" why every capture fails."""
        if self._graphs is not None and not self._graphs.startswith("!"):
            return self._graphs
        self.makers.append(RecordedGraphs(lambda: self.record().wait(), (self._graphs or "!")[1:]))
        return self.makers[-1]

    def sampler(self) -> StepSampler:
        """torch's."""
        return TorchSampler()

    def measured(self, work: Work) -> Usage:
        """What `usages` says, in turn; nothing behind its end."""
        self.record().wait()
        work()
        self.record().wait()
        return self.usages.pop(0) if self.usages else Usage(0, 0)

    def translated(self, error: Exception) -> BackendError | None:
        """One text of its own."""
        return DeviceLost(str(error)) if "fell off the bus" in str(error) else None


class LateKit:
    """A device kit over such a queue, in float32 and with plain torch's kernels."""

    device = torch.device("cpu")
    collectives = "gloo"
    allocation_bytes = 0
    kv_cache_dtype: KVCacheDtype | None = None

    def __init__(self, queue: LateQueue | None) -> None:
        self._queue = queue

    def queue(self) -> LateQueue | None:
        """The queue; without one a step is done when its call returns."""
        return self._queue

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """What is asked for."""
        return stored if asked == "auto" else getattr(torch, asked)

    def linears(self) -> Sequence[LinearProvider]:
        """torch's."""
        return (TorchLinears(),)

    def lora_kernel(self, weights: dict[int, LoraWeights]) -> LoraKernel:
        """torch's."""
        return TorchLoraKernel(weights)

    def attention(self) -> Sequence[AttentionProvider]:
        """torch's."""
        return (TorchAttention(),)

    def choices(self) -> tuple[Kernel, ...]:
        """Nothing was chosen."""
        return ()

    def table_refusal(self) -> str:
        """It has no step of its own."""
        return "no step of its own"

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """None."""
        raise UnsupportedFamily(self.table_refusal())

    def free_bytes(self) -> int:
        """Enough for small models."""
        return 1 << 30

    def default_rows(self) -> int:
        """Few."""
        return 8

    def default_step_tokens(self) -> int:
        """Few."""
        return 256
