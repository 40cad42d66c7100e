"""A stand-in for captured graphs on the CPU: the operators of one run are recorded with their tensors, and run again over those.

Python is not run again, so a number that the host took from somewhere stays what it was when it was recorded, as in a real graph; and
what would make a device wait for the host cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tgi_core.engine.device_queue import CannotCapture, Work

_ASKS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "_unique2")
"""Operators that need the device's answer before the host can go on."""


class Operation(NamedTuple):
    """An operator, what it ran over, and those of its results that it made new, each with its place among the results."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fresh: list[tuple[int, Tensor]]


class Recorder(TorchDispatchMode):
    """Notes every operator that runs, except those that only make views: a view shows what is written later."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _ASKS:
            raise CannotCapture(f"{name} waits for the device")
        out = func(*args, **(kwargs or {}))
        inputs = {leaf.untyped_storage().data_ptr() for leaf in _tensors((args, kwargs))}
        results = _tensors(out)
        fresh = [(place, leaf) for place, leaf in enumerate(results) if leaf.untyped_storage().data_ptr() not in inputs]
        if fresh or func._schema.is_mutable or not results or name == "wait_tensor":  # which waits for a collective
            self.operations.append(Operation(func, args, kwargs or {}, fresh))
        return out


def _tensors(values: Any) -> list[Tensor]:
    return [values] if isinstance(values, Tensor) else [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class RecordedGraph:
    """Recorded operators with the tensors that they ran over."""

    def __init__(self, operations: list[Operation]) -> None:
        self._operations = operations
        self.replays = 0

    @torch.inference_mode()
    def replay(self) -> None:
        """Run them again; what they made new is written where it was made the first time."""
        self.replays += 1
        for func, args, kwargs, fresh in self._operations:
            out = func(*args, **kwargs)
            if fresh:
                results = _tensors(out)
                for place, old in fresh:
                    old.copy_(results[place])


class RecordedGraphs:
    """Captures such graphs, which first has the device do what it was given. `refusal` lets every capture fail with it."""

    def __init__(self, settle: Callable[[], None], refusal: str = "") -> None:
        self._settle, self._refusal = settle, refusal
        self.made: list[RecordedGraph] = []

    def capture(self, work: Work) -> RecordedGraph:
        """Run once, then record."""
        self._settle()
        work()
        if self._refusal:
            raise CannotCapture(self._refusal)
        recorder = Recorder()
        with recorder:
            work()
        self.made.append(RecordedGraph(recorder.operations))
        return self.made[-1]

    def release(self) -> None:
        """There is no pool."""
