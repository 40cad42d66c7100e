"""The all-reduce of a captured step: one kernel over symmetric memory for small tensors, the process group's for all others.

A decode step sums a few hundred KiB per layer twice, for which the group's all-reduce mostly waits. In symmetric memory each rank reads
what all ranks have written (one-shot), in the order of ranks, so that all get the same bits. `choose_all_reduce` proves that on the device
at load; otherwise the group's all-reduce sums everything. It has been tested with a stand-in for the memory between two processes, not on
devices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend import Kernel
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.device_queue import DeviceQueue, Graph, GraphCapturer
from tgi_core.engine.selection import attempt

_log = logging.getLogger("tgi_core.engine")

PART = "all-reduce"

ALIGNMENT = 16
"""Bytes of which tensors must be a multiple: what a thread reads at a time."""

_ROUNDS = 3
"""How often the self-check repeats a sum, to see that a rank never reads what another is already overwriting."""

AllReduce = Callable[[Tensor], Tensor]
"""The sum of the ranks' tensors, the same bits on each; the argument may be overwritten."""


NewQueue = Callable[[], DeviceQueue | None]


class SymmetricMemory(Protocol):
    """Memory of each rank that all ranks of a group read. Anything but `empty` may be a collective."""

    name: str

    def refusal(self, dtype: torch.dtype, device: torch.device) -> str:
        """Why this rank cannot use it; empty if it can."""

    def empty(self, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer [elements]. Raises RuntimeError."""

    def connect(self, buffer: Tensor, group: str) -> None:
        """Let the ranks of torch.distributed's group of this name read each other's buffers. Raises RuntimeError."""

    def reduce(self, buffer: Tensor, tensor: Tensor, group: str) -> Tensor:
        """The sum over the ranks of tensor [n], a new one; `buffer` is the beginning [n] of a connected one. It can be captured."""


class TorchSymmetricMemory:
    """torch's, whose operators run on CUDA devices and their equals that access each other's memory."""

    name = "one-shot"

    def refusal(self, dtype: torch.dtype, device: torch.device) -> str:
        """Why this rank cannot use it; empty if it can."""
        if device.type != "cuda":
            return f"torch has no symmetric memory on {device.type}"
        if dtype not in (torch.bfloat16, torch.float32):
            return f"the dtype is {dtype}"
        from torch.distributed import _symmetric_memory  # noqa: F401  defines the operators

        return "" if hasattr(torch.ops.symm_mem, "one_shot_all_reduce_copy") else "this version of torch lacks the operator"

    def empty(self, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer [elements]. Raises RuntimeError."""
        from torch.distributed import _symmetric_memory

        return _symmetric_memory.empty(elements, dtype=dtype, device=device)

    def connect(self, buffer: Tensor, group: str) -> None:
        """Wait for the other ranks' buffers. Raises RuntimeError."""
        from torch.distributed import _symmetric_memory

        _symmetric_memory.rendezvous(buffer, group)  # type: ignore[arg-type]

    def reduce(self, buffer: Tensor, tensor: Tensor, group: str) -> Tensor:
        """One kernel: copy to the buffer, wait for the other ranks, sum."""
        out: Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(buffer, tensor, "sum", group)
        return out


@dataclass(frozen=True, slots=True)
class GroupAllReduce:
    """The process group's, by an operator that compilers can trace."""

    group: str
    """torch.distributed's name of the group."""
    in_place: bool = False
    """Whether sums overwrite results, which compilers decide for themselves; it saves a copy otherwise."""

    def __call__(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks."""
        operators = torch.ops._c10d_functional
        reduce = operators.all_reduce_ if self.in_place else operators.all_reduce
        out: Tensor = operators.wait_tensor(reduce(tensor, "sum", self.group))
        return out


@dataclass(frozen=True, slots=True)
class OneShotAllReduce:
    """Sums tensors that fit `buffer` [elements] in symmetric memory there; `larger` ones, and those that are not aligned, otherwise. The
    choice follows from a tensor's shape, so all ranks make the same, and a captured step keeps it."""

    memory: SymmetricMemory
    buffer: Tensor
    group: str
    larger: AllReduce

    def __call__(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks."""
        elements = tensor.numel()
        if (
            not 0 < elements <= self.buffer.numel()
            or elements * tensor.itemsize % ALIGNMENT
            or tensor.dtype is not self.buffer.dtype
        ):
            return self.larger(tensor)
        return self.memory.reduce(self.buffer[:elements], tensor.contiguous().view(-1), self.group).view(tensor.shape)


@dataclass(frozen=True, slots=True)
class AllReduceOptions:
    """What a device has for small tensors: those of up to `most_bytes`. `reason`: why it has nothing, or the operator's switch."""

    memory: SymmetricMemory
    most_bytes: int
    reason: str = ""


def choose_all_reduce(
    collectives: Collectives, dtype: torch.dtype, device: torch.device, options: AllReduceOptions, new_queue: NewQueue
) -> tuple[AllReduce, Kernel]:
    """What sums a step's tensors, alike on all ranks, and what to report. Every rank calls it, with the same arguments.
    `new_queue` makes the device's queue, in which a sum is captured."""
    group = GroupAllReduce(collectives.name, in_place=True)
    found = _OneShot(collectives, dtype, device, options, new_queue, group)
    reason = found.reason()
    if reason or found.reduce is None:
        _log.info("all-reduce: the process group's; not %s: %s", options.memory.name, reason)
        return group, Kernel(PART, "group", f"not {options.memory.name}: {reason}")
    limit = f"tensors of up to {options.most_bytes >> 10} KiB"
    _log.info("all-reduce: %s for %s", options.memory.name, limit)
    return found.reduce, Kernel(PART, options.memory.name, limit)


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph that sums `tensor` into `out`."""

    queue: DeviceQueue
    graphs: GraphCapturer
    graph: Graph
    tensor: Tensor
    out: Tensor


class _OneShot:
    """The attempt to use symmetric memory, in steps after each of which the ranks agree whether to go on: one that has failed must not
    leave the others waiting in what follows. A kernel that waits for a rank forever ends the session, as in a step."""

    def __init__(
        self,
        collectives: Collectives,
        dtype: torch.dtype,
        device: torch.device,
        options: AllReduceOptions,
        new_queue: NewQueue,
        group: GroupAllReduce,
    ) -> None:
        self._collectives, self._dtype, self._device, self._new_queue = collectives, dtype, device, new_queue
        self._options, self._group = options, group
        self.reduce: OneShotAllReduce | None = None
        self._captured: _Captured | None = None

    def reason(self) -> str:
        """Why it cannot be used; empty if `reduce` can."""
        for step in (self._refusal, self._allocate, self._connect, self._differs, self._capture, self._differs_in_a_graph):
            reason = attempt(step)
            if not self._collectives.least(int(not reason)):
                self.reduce = None
                return reason or "another rank cannot use it"
        return ""

    def _refusal(self) -> str:
        return self._options.reason or self._options.memory.refusal(self._dtype, self._device)

    def _allocate(self) -> str:
        elements = self._options.most_bytes // self._dtype.itemsize
        buffer = self._options.memory.empty(elements, self._dtype, self._device)
        self.reduce = OneShotAllReduce(self._options.memory, buffer, self._group.group, self._group)
        return ""

    def _connect(self) -> str:
        self._options.memory.connect(self._made.buffer, self._group.group)
        return ""

    @property
    def _made(self) -> OneShotAllReduce:
        if self.reduce is None:
            raise RuntimeError("the buffer was not allocated")
        return self.reduce

    def _differs(self) -> str:
        """Whether sums of a few sizes differ from the group's, or between ranks or repetitions."""
        most, reasons = self._made.buffer.numel(), list[str]()
        for elements in (most, ALIGNMENT // self._dtype.itemsize, most // 2):
            tensor = self._drawn(elements, seed=elements)
            reasons += [self._wrong(tensor, self._made(tensor.clone())) for _ in range(_ROUNDS)]  # all: others wait for this rank
        return next(filter(None, reasons), "")

    def _capture(self) -> str:
        """Capture a sum, if the device captures steps. Apart from its replays: it may fail on one rank only."""
        tensor = self._drawn(self._made.buffer.numel() // 2, seed=1)
        out, queue = torch.empty_like(tensor), self._new_queue()
        graphs = "" if queue is None else queue.graphs()
        if queue is not None and not isinstance(graphs, str):
            try:
                graph = graphs.capture(lambda: self._fill(out, self._made(tensor)))
            except BaseException:
                graphs.release()
                raise
            self._captured = _Captured(queue, graphs, graph, tensor, out)
        return ""

    def _differs_in_a_graph(self) -> str:
        """What is wrong with the captured sum when it is replayed for other numbers."""
        captured = self._captured
        if captured is None:
            return ""
        reasons = []
        for seed in range(2, 2 + _ROUNDS):
            captured.queue.run(partial(self._draw_again, captured.tensor, seed))
            captured.queue.run(captured.graph.replay)
            captured.queue.record().wait()
            reasons.append(self._wrong(captured.tensor, captured.out))
        captured.graphs.release()
        return next((f"in a graph, {reason}" for reason in reasons if reason), "")

    def _draw_again(self, tensor: Tensor, seed: int) -> None:
        tensor.copy_(self._drawn(tensor.numel(), seed))

    @staticmethod
    def _fill(target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def _drawn(self, elements: int, seed: int) -> Tensor:
        """Random numbers, others on each rank."""
        generator = torch.Generator().manual_seed(seed * self._collectives.world + self._collectives.rank)
        return torch.randn(elements, generator=generator).to(self._device, self._dtype)

    def _wrong(self, tensor: Tensor, found: Tensor) -> str:
        """What is wrong with the sum of the ranks' tensors; a collective. Each of its additions may round once, in any order."""
        world = self._collectives.world
        summed, magnitudes = self._group(tensor.clone()), self._group(tensor.abs())
        self._collectives.settle()  # raises if a rank is lost; reading would wait forever
        bits = self._collectives.gather(found.view(torch.int32), [found.view(torch.int32).numel()] * world).view(world, -1)
        if not bool((bits == bits[0]).all()):
            return "ranks get different sums"
        bound = world * torch.finfo(self._dtype).eps * magnitudes.float()
        return "" if bool(((found.float() - summed.float()).abs() <= bound).all()) else "sums differ from the process group's"
