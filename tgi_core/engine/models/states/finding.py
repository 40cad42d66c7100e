"""Finds the layers of a model that keep states, by watching a run of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from tgi_core.backend import Kernel
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.models.build import text_config
from tgi_core.engine.models.cache_names import cache_name
from tgi_core.engine.models.states.attributes import AttributeLayer, watched_attributes
from tgi_core.engine.models.states.layers import CacheLayer, StateLayer
from tgi_core.engine.models.states.slots import StateKey, StateShapes, StepPart, new_states, state_bytes, step_parts

_KINDS = ("conv", "recurrent")


@dataclass(slots=True)
class StateLayers:
    """The state layers of a model, by module name, and how many of its layers attend."""

    layers: dict[str, StateLayer] = field(default_factory=dict)
    attending: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's states."""
        return sum(state_bytes(layer.shapes) for layer in self.layers.values())

    def row_bytes_as(self, dtype: torch.dtype) -> int:
        """Bytes of one row's states if bfloat16 ones were in this dtype."""
        wider = dtype.itemsize - torch.bfloat16.itemsize
        shapes = [shape for layer in self.layers.values() for shape, stored in layer.shapes.values() if stored is torch.bfloat16]
        return self.row_bytes + wider * sum(torch.Size(shape).numel() for shape in shapes)

    def allocate(self, slots: int, device: torch.device) -> None:
        """Keep the states of rows in slots 1…slots."""
        for layer in self.layers.values():
            layer.use(new_states(layer.shapes, slots, device))

    def release(self) -> None:
        """Free the states."""
        for layer in self.layers.values():
            layer.use({})

    @contextmanager
    def running(self, order: Sequence[RowInput], device: torch.device) -> Iterator[None]:
        """Run the layers over the flat tokens of these rows inside."""
        self._start(step_parts(order, device))
        try:
            yield
        finally:
            self._start(())

    def _start(self, parts: Sequence[StepPart]) -> None:
        for layer in self.layers.values():
            layer.start(parts)


def state_kernels(states: StateLayers, attention: Kernel) -> tuple[Kernel, ...]:
    """How a model with state layers runs, given how its other layers attend."""
    kinds = f"{len(states.layers)} layers, rows batched"
    return (attention if states.attending else Kernel("attention", "none", "no layer attends"), Kernel("states", kinds))


def find_state_layers(model: PreTrainedModel) -> StateLayers | None:
    """The layers that keep states, in transformers' cache or in attributes; None if there are none. Raises NotRagged, or what the
    model raises.

    Watches a run of two tokens, so that no layer is known by name.
    """
    name, supported = cache_name(model), model._supports_default_dynamic_cache()
    cache = DynamicCache(config=text_config(model.config)) if name and supported else None
    layers = [] if cache is None else getattr(cache, "layers", [])
    if not any(hasattr(layer, "update_conv_state") or hasattr(layer, "update_recurrent_state") for layer in layers):
        return None
    ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    with _watched(model, cache) as watch, watched_attributes(model) as attributes, torch.inference_mode():
        model(input_ids=ids, use_cache=True, **{name: cache})
    found: dict[str, StateLayer] = {}
    for module, keys in watch.touched.items():
        found[module] = CacheLayer(model.get_submodule(module), _shapes(cache, keys))
    if not found:
        found = {module: AttributeLayer(model.get_submodule(module), shapes) for module, shapes in attributes.items()}
    return StateLayers(found, watch.attending) if found else None


def _shapes(cache: Any, keys: set[tuple[int, str, int]]) -> StateShapes:
    shapes: dict[StateKey, tuple[tuple[int, ...], torch.dtype]] = {}
    for layer, kind, number in sorted(keys):
        state = getattr(cache, f"get_{kind}_state")(layer, number)
        if state is not None:
            shapes[kind, number] = (tuple(state.shape[1:]), state.dtype)
    return shapes


@dataclass(slots=True)
class _Watch:
    """Which states (layer, kind, number) modules touched, by module name, and how often keys and values were added."""

    touched: dict[str, set[tuple[int, str, int]]] = field(default_factory=dict)
    attending: int = 0


@contextmanager
def _watched(model: nn.Module, cache: Any) -> Iterator[_Watch]:
    """Record which modules use the cache's states inside."""
    watch, inside, hooks = _Watch(), list[str](), list[Any]()

    def enter(name: str) -> Callable[..., None]:
        return lambda module, args: inside.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        inside.pop()

    def touch(method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def touched(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(method).bind(*args, **kwargs)
            given.apply_defaults()
            key = (given.arguments["layer_idx"], kind, given.arguments["state_idx"])
            watch.touched.setdefault(inside[-1], set()).add(key)
            return method(*args, **kwargs)

        return touched

    def attend(*args: Any, **kwargs: Any) -> Any:
        watch.attending += 1
        return type(cache).update(cache, *args, **kwargs)

    for kind in _KINDS:
        setattr(cache, f"update_{kind}_state", touch(getattr(cache, f"update_{kind}_state"), kind))
    cache.update = attend
    for name, module in model.named_modules():
        hooks += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
    try:
        yield watch
    finally:
        for hook in hooks:
            hook.remove()
