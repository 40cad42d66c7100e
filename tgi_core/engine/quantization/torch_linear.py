"""Dequantize, then multiply with torch's own product: serves every layout on every device, and is the oracle for faster providers."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.quantization.linear import Linear
from tgi_core.engine.quantization.weight import Weight


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """weight [out, in] and bias [out]; the device's library multiplies."""

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
    """The provider `torch`, the last of every device. A weight is dequantized once, as it is loaded: it takes the memory of a dense one
    and costs no more than one."""

    name = "torch"

    def probe(self) -> str:
        """It runs everywhere."""
        return ""

    def refusal(self, weight: Weight) -> str:
        """It serves every weight."""
        return ""

    def self_check(self, weight: Weight) -> str:
        """It is what others are compared with."""
        return ""

    def load(self, weight: Weight, bias: Tensor | None) -> Linear:
        """See `LinearProvider.load`."""
        return TorchLinear(weight.dequantize(), bias)
