"""Replaces a model's modules by faster, equivalent ones."""

from __future__ import annotations

from torch import Tensor, nn

from tgi_core.engine.models.linear_layers import weight_of
from tgi_core.engine.models.merging import LinearFactory, merge, mergeable


def replace_linears(model: nn.Module, seen: dict[str, list[Tensor]], factory: LinearFactory) -> None:
    """Merge layers that share an input, and replace every plain linear layer that ran by the factory's.

    `seen` is what `observed_inputs` returned; a layer that wasn't called (its weight is used in some other way) stays.
    """
    groups = mergeable(model, seen)
    seen_names = set(seen)
    seen.clear()
    for names in groups:
        merge(model, names, factory)
        seen_names.difference_update(names)
    for name in sorted(seen_names):
        layer = model.get_submodule(name)
        model.set_submodule(name, factory(weight_of(layer), dict(layer.named_parameters()).get("bias")))
