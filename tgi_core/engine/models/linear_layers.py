"""The linear layers of a model, in any of their classes."""

from __future__ import annotations

from torch import nn
from transformers.pytorch_utils import Conv1D

from tgi_core.engine.models.linear import WeightLinear
from tgi_core.engine.quantization.weight import Dense, Weight

KINDS = (nn.Linear, WeightLinear, Conv1D)
"""Exactly these classes: a subclass may compute something else."""


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a plain linear layer."""
    return type(module) in KINDS


def linear_sizes(module: nn.Module) -> tuple[int, int] | None:
    """(inputs, outputs) of a linear layer; None for anything else."""
    if isinstance(module, nn.Linear | WeightLinear) and is_linear(module):
        return module.in_features, module.out_features
    if type(module) is Conv1D:
        inputs, outputs = module.get_parameter("weight").shape
        return inputs, outputs
    return None


def weight_of(module: nn.Module) -> Weight:
    """The weight [out, in] of a linear layer."""
    if isinstance(module, WeightLinear):
        return module.stored
    weight = module.get_parameter("weight")
    # GPT-2's layers store their weights transposed.
    return Dense.of(weight.t().contiguous() if type(module) is Conv1D else weight)
