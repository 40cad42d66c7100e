"""Dequantize, then use torch's GEMM: supports every layout on every device, and is the reference for faster providers."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.quantization.linear import Linear
from tgi_core.engine.quantization.weight import Weight


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """weight [out, in] and bias [out]; the GEMM is torch's."""

    dense: Tensor
    bias: Tensor | None

    @property
    def num_bytes(self) -> int:
        """See `Linear.num_bytes`."""
        return self.dense.numel() * self.dense.itemsize

    def __call__(self, input: Tensor) -> Tensor:
        """See `Linear.__call__`."""
        return F.linear(input, self.dense, self.bias)


class TorchLinears:
    """The provider `torch`, the last one of every device. A weight is dequantized once, when it is loaded; then it costs as much memory and
    time as a dense one."""

    name = "torch"

    def probe(self) -> str:
        """It runs everywhere."""
        return ""

    def refusal(self, weight: Weight) -> str:
        """It supports every weight."""
        return ""

    def self_check(self, weight: Weight) -> str:
        """It is the reference."""
        return ""

    def load(self, weight: Weight, bias: Tensor | None) -> Linear:
        """See `LinearProvider.load`."""
        return TorchLinear(weight.dequantize(), bias)
