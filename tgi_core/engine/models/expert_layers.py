"""Experts of transformers' modules by a device's kernel, which does not wait to learn how many tokens each expert has.

transformers' own grouped GEMM reads these numbers, on most devices and in most dtypes: such a step can neither run ahead nor be captured.
Source: transformers' `ExpertsInterface` (integrations/moe.py), which transformers 4 does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tgi_core.engine.experts import Activation, Chosen, Experts, ExpertsKernel

NAME = "tgi_experts"
"""The name of our function in transformers' table, and of what it needs in a module."""


def use_kernel(model: nn.Module, kernel: ExpertsKernel) -> bool:
    """Have the kernel run a model's experts, if it can run all of them; their weights are brought into its layout. Returns whether."""
    found = list(_experts(model))
    activations = [activation for activation in map(_activation, found) if activation is not None]
    if not found or len(activations) < len(found):
        return False
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)
    sizes: dict[object, Experts] = {}
    for module, activation in zip(found, activations, strict=True):
        experts = _arranged(module, activation)
        setattr(module, NAME, (experts, kernel))
        module.config._experts_implementation = NAME
        sizes[experts.gate_up.shape, experts.gate_up.dtype] = experts
    for experts in sizes.values():
        kernel.prepare_experts(experts)
    return True


def _forward(module: nn.Module, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Tokens [tokens, hidden], their experts and weights [tokens, chosen] → the weighted sum [tokens, hidden]."""
    experts, kernel = getattr(module, NAME)
    made: Tensor = kernel.experts(
        hidden.contiguous(), Chosen(ids.to(torch.int32).contiguous(), weights.float().contiguous()), experts
    )
    return made.sum(1)


def _experts(model: nn.Module) -> Iterator[Any]:
    """The modules whose forward pass transformers looks up in its table."""
    for module in model.modules():
        if all(hasattr(module, name) for name in ("has_gate", "has_bias", "is_transposed", "is_concatenated", "_apply_gate")):
            yield module


def _activation(module: Any) -> Activation | None:
    """The activation of experts; None if they are not gated MLPs that the kernel knows."""
    if not module.has_gate or getattr(module, "has_post_expert_norm", False):
        return None
    known = [Activation()]
    if hasattr(module, "alpha") and hasattr(module, "limit"):
        known.append(Activation(float(module.alpha), 1.0, float(module.limit)))
    both = torch.linspace(-9, 9, 24).view(2, 12)
    wanted = module._apply_gate(both)
    gate, up = both.chunk(2, -1) if module.is_concatenated else (both[:, ::2], both[:, 1::2])
    return next((each for each in known if torch.allclose(each(gate, up), wanted, atol=1e-5)), None)


def _arranged(module: Any, activation: Activation) -> Experts:
    """The weights of a module as the kernel reads them, in the module's place."""
    both, down = module.gate_up_proj.data, module.down_proj.data
    if module.is_transposed:
        both, down = both.transpose(1, 2), down.transpose(1, 2)
    biases = (module.gate_up_proj_bias.data, module.down_proj_bias.data) if module.has_bias else (None, None)
    own, other = biases
    if not module.is_concatenated:
        both = torch.cat((both[:, ::2], both[:, 1::2]), 1)
        own = None if own is None else torch.cat((own[:, ::2], own[:, 1::2]), 1)
    experts = Experts(both.contiguous(), down.contiguous(), own, other, activation)
    for name, value in (("gate_up_proj", experts.gate_up), ("down_proj", experts.down)):
        module._parameters[name] = nn.Parameter(value, requires_grad=False)  # no second copy, as the layout may be another
    return experts
