"""A layer that keeps states, run part by part inside a flat step."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.models.cache_names import CACHE_NAMES
from tgi_core.engine.models.states.scan import starting_from
from tgi_core.engine.models.states.slots import PartStates, SlotStates, StateKey, StateShapes, StepPart


class StateLayer(ABC):
    """A module that keeps states. In a flat step it runs once per part; otherwise as in transformers."""

    def __init__(self, module: nn.Module, shapes: StateShapes) -> None:
        self.shapes, self.states = shapes, dict[StateKey, Tensor]()
        self._takes, self._plain = list(inspect.signature(module.forward).parameters), module.forward
        self._parts: Sequence[StepPart] = ()
        module.forward = self._forward
        for each in module.modules():
            if isinstance(each, nn.Linear):
                each.register_forward_pre_hook(_foldable)

    def use(self, states: SlotStates) -> None:
        """Keep the states in this memory from now on."""
        self.states = dict(states)

    def start(self, parts: Sequence[StepPart]) -> None:
        """Run in these parts from now on; without any, as in transformers."""
        self._parts = parts

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._parts:
            return self._plain(*args, **kwargs)
        given = dict(zip(self._takes, args, strict=False)) | kwargs
        outputs = [self._run(part, given) for part in self._parts]
        return outputs[0] if len(outputs) == 1 else joined(outputs)

    @abstractmethod
    def _run(self, part: StepPart, given: dict[str, Any]) -> Any:
        """The output of a part, given the arguments of the whole step by name."""

    def _arguments(self, part: StepPart, given: dict[str, Any]) -> dict[str, Any]:
        return {name: _cut(value, part, self._parts[-1].end) for name, value in given.items()}


class CacheLayer(StateLayer):
    """A module that uses the methods of transformers' `Cache` for states."""

    def __init__(self, module: nn.Module, shapes: StateShapes) -> None:
        """Raises NotRagged."""
        super().__init__(module, shapes)
        self._cache = next((name for name in self._takes if name in CACHE_NAMES), "")
        if not self._cache:
            raise NotRagged(f"{type(module).__name__} keeps states, but takes no cache")
        self._in_parts = starting_from(module, self._next_state) or self._plain
        self._running: PartStates | None = None
        self._scans = 0

    def _run(self, part: StepPart, given: dict[str, Any]) -> Any:
        self._running, self._scans = PartStates(self.states, part), 0
        output = self._in_parts(**self._arguments(part, given) | {self._cache: self._running})
        self._running.commit()
        return flat(output) if part.one_each else output

    def _next_state(self) -> Tensor | None:
        """The state for the next scan of this call: layers with several heads scan them one after the other."""
        state = None if self._running is None else self._running.get_recurrent_state(0)
        if state is None or state.ndim == 3:
            return state
        self._scans += 1
        return state[:, self._scans - 1]


def _cut(value: Any, part: StepPart, tokens: int) -> Any:
    """A part's tokens of an argument; a batch of rows if each runs one."""
    if isinstance(value, tuple | list):
        return tuple(_cut(each, part, tokens) for each in value)
    if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[:2] != (1, tokens):
        return value
    cut = value[:, part.start : part.end]
    # not transposed: `matmul` would not fold a batch with such strides, and copy its weight for every row
    return cut.reshape(-1, 1, *cut.shape[2:]) if part.one_each else cut


def _foldable(linear: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The input of a linear layer with the strides of its shape: with others, even of dimensions of size 1, `matmul` does not fold rows,
    and copies the weight for each."""
    given, *others = args
    return given.reshape(-1, given.shape[-1]).reshape(given.shape), *others


def flat(output: Any) -> Any:
    """Outputs of a batch of rows with one token each, as those of one row."""
    if isinstance(output, tuple | list):
        return tuple(map(flat, output))
    return output.reshape(1, -1, *output.shape[2:]) if isinstance(output, Tensor) else output


def joined(outputs: list[Any]) -> Any:
    """The outputs of all parts, concatenated."""
    if isinstance(outputs[0], tuple | list):
        return tuple(map(joined, map(list, zip(*outputs, strict=True))))
    return torch.cat(outputs, dim=1) if isinstance(outputs[0], Tensor) else outputs[0]
