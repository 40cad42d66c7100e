"""Linear layers over 8-bit inputs in Triton's kernels. Kernel modules are imported at launch, so this module can be imported without
Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tgi_core.engine.quantization.linear import Linear
from tgi_core.engine.quantization.rounded_linear import RoundingLinears, device_codes, scaled
from tgi_core.engine.quantization.rows import RowRounding
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.triton.probing import probe

if TYPE_CHECKING:
    from tgi_core.engine.triton.scaled_gemm import CodedWeight


@dataclass(frozen=True, slots=True)
class TritonRoundedLinear:
    """A weight of codes, bias [out]."""

    weight: CodedWeight
    bias: Tensor | None
    rounding: RowRounding

    @property
    def num_bytes(self) -> int:
        """See `Linear.num_bytes`."""
        return self.weight.num_bytes

    @property
    def dense(self) -> Tensor | None:
        """None: it has codes."""
        return None

    def __call__(self, input: Tensor) -> Tensor:
        """See `Linear.__call__`."""
        from tgi_core.engine.triton.scaled_gemm import launch_scaled_gemm

        out = launch_scaled_gemm(input.reshape(-1, input.shape[-1]), self.weight, self.bias, self.rounding)
        return out.view(*input.shape[:-1], out.shape[-1])


class TritonRoundedLinears(RoundingLinears):
    """The provider `triton-w8a8`: 8-bit integers and e4m3 floats, with a scale per output or by groups."""

    name = "triton-w8a8"

    def probe(self) -> str:
        """Whether Triton is there."""
        return probe()

    def load(self, weight: Weight, bias: Tensor | None) -> Linear:
        """See `LinearProvider.load`. Its kernels are compiled now, so that no request waits for one."""
        from tgi_core.engine.triton.scaled_gemm import TILES, CodedWeight

        rounding = self.rounding(scaled(weight))
        codes, scales = device_codes(scaled(weight), rounding.dtype)
        linear = TritonRoundedLinear(CodedWeight(codes, scales.t().contiguous()), bias, rounding)
        for tile in TILES:
            linear(torch.zeros(tile.rows, weight.shape[1], dtype=weight.dtype, device=weight.device))
        return linear


def round_rows(rows: Tensor, rounding: RowRounding) -> tuple[Tensor, Tensor]:
    """`rounded_rows` in one kernel, of rows that are contiguous in their last dimension."""
    from tgi_core.engine.triton.scaled_gemm import launch_round_rows

    return launch_round_rows(rows, rounding)
