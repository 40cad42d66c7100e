"""Runs a model layer by layer over calibration text, so that only one layer's statistics are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tgi_core.backend import Unsupported


class _Stopped(Exception):
    """The first layer was reached."""


Change = Callable[[str, nn.Linear, Tensor], None]
"""Called with a linear layer, its full name and the second moments [in, in] of its inputs; may change the layer's weight."""


@dataclass(frozen=True, slots=True)
class SeenLayer:
    """A decoder layer that has seen the calibration text: its linear layers by full name, the second moments [in, in] of their inputs, and
    a function that runs the layer on one row."""

    layer: nn.Module
    linears: dict[str, nn.Linear]
    moments: dict[str, Tensor]
    run: Callable[[], Tensor]


Prepare = Callable[[SeenLayer], None]
"""Called once per layer before `Change`; may change weights and moments, but not what the layer computes."""


@torch.inference_mode()
def each_layer(
    model: PreTrainedModel, rows: Tensor, wanted: set[str], prepare: Prepare, change: Change, done: Callable[[int, int], None]
) -> None:
    """Call `prepare` for each decoder layer, then `change` for its wanted linear layers; later layers see the outputs of the changed
    ones. `rows` are token ids [rows, length]; `done` gets the numbers of finished layers and of all layers. Raises Unsupported if the
    model has no list of layers."""
    name, layers = _layers(model)
    batches = [_first_inputs(model, layers[0], row.unsqueeze(0)) for row in rows]
    for index, layer in enumerate(layers):
        linears = {
            f"{name}.{index}.{inner}": module
            for inner, module in layer.named_modules()
            if isinstance(module, nn.Linear) and f"{name}.{index}.{inner}" in wanted
        }
        with _moments(linears) as moments:
            for hidden, arguments in batches:
                layer(hidden, **arguments)
        reached = {full: linear for full, linear in linears.items() if full in moments}
        prepare(SeenLayer(layer, reached, moments, partial(_run, layer, *batches[0])))
        for full, linear in reached.items():
            change(full, linear, moments[full])
        batches = [(_run(layer, hidden, arguments), arguments) for hidden, arguments in batches]
        done(index + 1, len(layers))


def _layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The decoder layers, and their name: the longest list of modules."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    count = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", 0)
    found = next(((name, module) for name, module in lists if len(module) == count > 0), None)
    if found is None:
        raise Unsupported(
            f"model type {model.config.model_type!r} has no list of {count} layers; use a method without calibration"
        )
    return found


def _first_inputs(model: PreTrainedModel, first: nn.Module, row: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Hidden states and other arguments that the first layer gets."""
    caught: list[tuple[Tensor, dict[str, Any]]] = []

    def catch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, *rest = args or (kwargs.pop("hidden_states"),)
        if rest:
            raise Unsupported(f"layers of model type {model.config.model_type!r} take arguments by position")
        caught.append((hidden, kwargs | ({"use_cache": False} if "use_cache" in kwargs else {})))
        raise _Stopped

    hook = first.register_forward_pre_hook(catch, with_kwargs=True)
    try:
        model(row, use_cache=False)
    except _Stopped:
        pass
    finally:
        hook.remove()
    return caught[0]


def _run(layer: nn.Module, hidden: Tensor, arguments: dict[str, Any]) -> Tensor:
    """The layer's hidden states; layers return them, or a tuple that begins with them."""
    output = layer(hidden, **arguments)
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


@contextmanager
def _moments(linears: dict[str, nn.Linear]) -> Iterator[dict[str, Tensor]]:
    """Sums of x·xᵀ over the inputs x that each layer gets while the block runs."""
    sums: dict[str, Tensor] = {}

    def hook_of(name: str) -> Callable[..., None]:
        def add(module: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
            flat = args[0].flatten(0, -2).float()
            sums[name] = sums[name].addmm_(flat.T, flat) if name in sums else flat.T @ flat

        return add

    hooks = [linear.register_forward_hook(hook_of(name)) for name, linear in linears.items()]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()
