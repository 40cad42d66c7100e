"""Replacing a model's modules by faster ones of the same meaning."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tgi_core.engine.models.merging import LinearFactory, merge, mergeable


def replace_linears(model: nn.Module, seen: dict[str, list[Tensor]], factory: LinearFactory) -> None:
    """Merge what shares an input and hand every plain linear layer that ran to the factory.

    `seen` is what `observed_inputs` saw; a layer that didn't run by being called (its weight is used some other way) stays.
    """
    groups = mergeable(model, seen)
    seen_names = set(seen)
    seen.clear()
    for names in groups:
        merge(model, names, factory)
        seen_names.difference_update(names)
    for name in sorted(seen_names):
        layer = model.get_submodule(name)
        weight, bias = layer.get_parameter("weight"), dict(layer.named_parameters()).get("bias")
        # GPT-2's layers keep their weights the other way around.
        model.set_submodule(name, factory(weight.t().contiguous() if type(layer) is Conv1D else weight, bias))
