"""A linear layer over a weight as it is."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PlainLinear(nn.Module):
    """`nn.Linear` over a weight as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return F.linear(input, self.weight, self.bias)
