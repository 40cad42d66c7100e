"""Layers that keep the states of a batch in their own attributes, such as those of RecurrentGemma (Griffin, De et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tgi_core.engine.models.states.layers import StateLayer, flat, joined
from tgi_core.engine.models.states.slots import StateKey, StateShapes, StepPart


class AttributeLayer(StateLayer):
    """A module whose own states, or those of modules inside it, are attributes. They hold the states of its rows while a part of a step
    runs. Such modules take several tokens only at the start of a row: a later chunk runs token by token.
    """

    def __init__(self, module: nn.Module, shapes: StateShapes) -> None:
        """The keys of `shapes` are names of attributes, with a path if an inner module has them."""
        super().__init__(module, shapes)
        self._module = module
        self._extra = {"use_cache": True} if "use_cache" in self._takes else {}

    def _run(self, part: StepPart, given: dict[str, Any]) -> Any:
        if part.fresh or part.one_each:
            return self._run_part(part, given)
        steps = [replace(part, start=at, end=at + 1) for at in range(part.start, part.end)]
        return joined([self._run_part(step, given) for step in steps])

    def _run_part(self, part: StepPart, given: dict[str, Any]) -> Any:
        for key in self.shapes:
            self._set(key, None if part.fresh else self.states[key][part.slots])
        output = self._plain(**self._arguments(part, given) | self._extra)
        for key in self.shapes:
            owner, name = _owner(self._module, key)
            self.states[key][part.slots] = getattr(owner, name)
            self._set(key, None)
        return flat(output) if part.one_each else output

    def _set(self, key: StateKey, value: Tensor | None) -> None:
        owner, name = _owner(self._module, key)
        setattr(owner, name, value)


def _owner(module: nn.Module, key: StateKey) -> tuple[nn.Module, str]:
    path, _, name = key[0].rpartition(".")
    return module.get_submodule(path), name


@contextmanager
def watched_attributes(model: nn.Module) -> Iterator[dict[str, StateShapes]]:
    """After the run inside, the states that modules stored as attributes, by name of the outermost such module. Removes them again."""
    before, found = {name: _tensors(module) for name, module in model.named_modules()}, dict[str, StateShapes]()
    yield found
    shapes: dict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]] = {}
    for name, module in model.named_modules():
        for attribute, value in _tensors(module).items():
            if value is not before[name].get(attribute) and value.ndim > 1 and len(value) == 1:
                owner = next((outer for outer in shapes if name.startswith(f"{outer}.")), name)
                path = f"{name}.{attribute}".removeprefix(f"{owner}.")
                shapes.setdefault(owner, {})[path] = tuple(value.shape[1:]), value.dtype
                setattr(module, attribute, None)
    found.update({owner: {(path, 0): shape for path, shape in each.items()} for owner, each in shapes.items()})


def _tensors(module: nn.Module) -> Mapping[str, Tensor]:
    """Attributes that are neither parameters nor buffers."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
