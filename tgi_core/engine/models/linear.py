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
    """`nn.Linear` over a weight in any layout, as it was loaded: dequantizes it at every call, until a kernel takes it."""

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
        """The weight goes where its module does."""
        self.stored = self.stored.apply(fn)
        self._parameters["weight"] = None
        super()._apply(fn, recurse)
        self.weight = _absent(self.stored)
        return self


class ProductLinear(nn.Module):
    """`nn.Linear` by a device's product."""

    def __init__(self, product: Linear, weight: Weight, bias: Tensor | None) -> None:
        """`weight` and `bias` are what the product was made of. A model that looks at the weight sees the matrix, where there is one."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = _absent(weight) if product.dense is None else nn.Parameter(product.dense, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._product = product

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return self._product(input)


def absent_weight(weight: Tensor) -> nn.Parameter:
    """What models see that look at a weight's dtype, device or shape; computing with it gives NaN, never something plausible."""
    value = float("nan") if weight.is_floating_point() else 0
    return nn.Parameter(
        torch.full((1,), value, dtype=weight.dtype, device=weight.device).expand(weight.shape), requires_grad=False
    )


def _absent(weight: Weight) -> nn.Parameter:
    return absent_weight(torch.empty((1, 1), dtype=weight.dtype, device=weight.device).expand(weight.shape))
