"""Modules that replace `nn.Linear`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tgi_core.engine.quantization.linear import Linear
from tgi_core.engine.quantization.weight import Weight


class WeightLinear(nn.Module):
    """`nn.Linear` over a weight in any layout, as loaded. It dequantizes at every call, until a kernel replaces it."""

    def __init__(self, stored: Weight, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = stored.shape
        self.stored = stored
        self.weight = _absent(stored)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return F.linear(input, self.stored.dequantize(), self.bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the weight with its module."""
        self.stored = self.stored.apply(fn)
        self._parameters["weight"] = None
        super()._apply(fn, recurse)
        self.weight = _absent(self.stored)
        return self


class KernelLinear(nn.Module):
    """`nn.Linear` computed by a device's linear kernel."""

    def __init__(self, linear: Linear, weight: Weight, bias: Tensor | None) -> None:
        """`linear` was loaded from `weight` and `bias`. A model that reads the weight gets the dense matrix if the kernel keeps it."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.keeps_weight = linear.dense is not None
        """Whether the kernel computes with the dense matrix, and so needs no copy."""
        self.weight = _absent(weight) if linear.dense is None else nn.Parameter(linear.dense, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._linear = linear

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return self._linear(input)


def absent_weight(weight: Tensor) -> nn.Parameter:
    """A stand-in for a weight, with its dtype, device and shape. Computing with it gives NaN, never a plausible result."""
    value = float("nan") if weight.is_floating_point() else 0
    return nn.Parameter(
        torch.full((1,), value, dtype=weight.dtype, device=weight.device).expand(weight.shape), requires_grad=False
    )


def _absent(weight: Weight) -> nn.Parameter:
    return absent_weight(torch.empty((1, 1), dtype=weight.dtype, device=weight.device).expand(weight.shape))
