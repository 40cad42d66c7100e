"""Finds the layers of a model that keep states, by watching which modules use transformers' cache for them, and runs them in flat steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from tgi_core.backend import Kernel
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.models.build import text_config
from tgi_core.engine.models.cache_names import CACHE_NAMES, cache_name
from tgi_core.engine.states.scan import starting_from
from tgi_core.engine.states.slots import PartStates, SlotStates, StateKey, StateShapes, StepPart, new_states, state_bytes, step_parts

_KINDS = ("conv", "recurrent")


class StateLayer:
    """A module that keeps states. In a flat step it runs once per part; else as transformers wrote it."""

    def __init__(self, module: nn.Module, shapes: StateShapes) -> None:
        """Raises NotRagged."""
        self._takes = list(inspect.signature(module.forward).parameters)
        self._cache = next((name for name in self._takes if name in CACHE_NAMES), "")
        if not self._cache:
            raise NotRagged(f"{type(module).__name__} keeps states, but takes no cache")
        self.shapes, self.states = shapes, dict[StateKey, Tensor]()
        self._plain = module.forward
        self._in_parts = starting_from(module, self._next_state) or module.forward
        self._parts: Sequence[StepPart] = ()
        self._running: PartStates | None = None
        self._scans = 0
        module.forward = self._forward

    def use(self, states: SlotStates) -> None:
        """Keep the states in this memory from now on."""
        self.states = dict(states)

    def start(self, parts: Sequence[StepPart]) -> None:
        """Run in these parts from now on; none: as transformers wrote it."""
        self._parts = parts

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._parts:
            return self._plain(*args, **kwargs)
        given = dict(zip(self._takes, args, strict=False)) | kwargs
        outputs = [self._run(part, given) for part in self._parts]
        return outputs[0] if len(outputs) == 1 else _joined(outputs)

    def _run(self, part: StepPart, given: dict[str, Any]) -> Any:
        self._running, self._scans = PartStates(self.states, part), 0
        cut = {name: _cut(value, part, self._parts[-1].end) for name, value in given.items()}
        output = self._in_parts(**cut | {self._cache: self._running})
        self._running.commit()
        return _flat(output) if part.one_each else output

    def _next_state(self) -> Tensor | None:
        """The state for the next scan of this call: layers with several heads scan them one after the other."""
        state = None if self._running is None else self._running.get_recurrent_state(0)
        if state is None or state.ndim == 3:
            return state
        self._scans += 1
        return state[:, self._scans - 1]


def _cut(value: Any, part: StepPart, tokens: int) -> Any:
    """A part's tokens of an argument; a batch of rows where each runs one."""
    if isinstance(value, tuple | list):
        return tuple(_cut(each, part, tokens) for each in value)
    if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[:2] != (1, tokens):
        return value
    cut = value[:, part.start : part.end]
    return cut.transpose(0, 1) if part.one_each else cut


def _flat(output: Any) -> Any:
    """Outputs of a batch of rows with one token each, as those of one row."""
    if isinstance(output, tuple | list):
        return tuple(map(_flat, output))
    return output.transpose(0, 1) if isinstance(output, Tensor) else output


def _joined(outputs: list[Any]) -> Any:
    """The outputs of all parts, one behind the other."""
    if isinstance(outputs[0], tuple | list):
        return tuple(map(_joined, map(list, zip(*outputs, strict=True))))
    return torch.cat(outputs, dim=1) if isinstance(outputs[0], Tensor) else outputs[0]


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
        """Bytes of one row's states if those in bfloat16 were in this dtype."""
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
    """The layers that keep states in transformers' cache; None if there are none. Raises NotRagged, or what the model raises.

    Watches a run of two tokens, so that no layer is known by name. Models that keep states elsewhere have none here.
    """
    name, supported = cache_name(model), model._supports_default_dynamic_cache()
    cache = DynamicCache(config=text_config(model.config)) if name and supported else None
    layers = [] if cache is None else getattr(cache, "layers", [])
    if not any(hasattr(layer, "update_conv_state") or hasattr(layer, "update_recurrent_state") for layer in layers):
        return None
    with _watched(model, cache) as watch:
        ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
        with torch.inference_mode():
            model(input_ids=ids, use_cache=True, **{name: cache})
    found = {module: _shapes(cache, keys) for module, keys in watch.touched.items()}
    return StateLayers({m: StateLayer(model.get_submodule(m), shapes) for m, shapes in found.items()}, watch.attending)


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
    """Watch who uses the cache's states inside."""
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
