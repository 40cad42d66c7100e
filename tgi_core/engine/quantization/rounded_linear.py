"""Linear layers whose inputs are rounded to eight bits: what providers of such GEMMs share, and torch's own, which calls a vendor's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_core.engine.quantization.checking import disagreement
from tgi_core.engine.quantization.linear import Linear
from tgi_core.engine.quantization.rows import RowRounding, rounded_product
from tgi_core.engine.quantization.weight import Scaled, Weight, code_range
from tgi_core.engine.selection import attempt

HALVES = (torch.bfloat16, torch.float16)
"""Dtypes of models whose inputs may be rounded: float32 would lose what it is there for."""

ALIGNED = 16
"""What the number of inputs must be a multiple of."""

GROUP = 32
"""The same for inputs that share a scale."""


class RoundingLinears(ABC):
    """A base of providers for 8-bit integers and e4m3 floats with scales, on a device that multiplies floats of the dtype `fp8`, if any."""

    name: str
    rounds_inputs = True

    def __init__(self, fp8: torch.dtype | None) -> None:
        self._fp8 = fp8

    @abstractmethod
    def probe(self) -> str:
        """See `LinearProvider.probe`."""

    @abstractmethod
    def load(self, weight: Weight, bias: Tensor | None) -> Linear:
        """See `LinearProvider.load`."""

    def refusal(self, weight: Weight) -> str:
        """Why it does not support this weight (layout, dtype or sizes); empty if it does."""
        if not isinstance(weight, Scaled) or len(weight.parts) > 2:
            return f"{weight.layout} weights" + (" with zero points" if isinstance(weight, Scaled) else "")
        codes, scales = weight.parts
        if weight.dtype not in HALVES:
            return f"the dtype is {weight.dtype}"
        if codes.dtype not in (torch.int8, torch.float8_e4m3fn):
            return f"codes of {codes.dtype}"
        if codes.is_floating_point() and self._fp8 is None:
            return "this device does not multiply 8-bit floats"
        if weight.shape[1] % ALIGNED:
            return f"{weight.shape[1]} inputs are no multiple of {ALIGNED}"
        if scales.shape[1] > 1 and weight.group_size % GROUP:
            return f"groups of {weight.group_size} inputs are no multiples of {GROUP}"
        if codes.dtype is torch.int8 and code_range(codes)[1] <= 16:
            return "codes of four bits"
        return ""

    def self_check(self, weight: Weight) -> str:
        """GEMMs with a few of its rows against torch, over inputs that are rounded alike."""
        if not isinstance(weight, Scaled):
            return f"{weight.layout} weights"
        rounding = self.rounding(weight)
        return attempt(lambda: disagreement(self, weight, lambda rows, some: rounded_product(rows, scaled(some), rounding)))

    def rounding(self, weight: Scaled) -> RowRounding:
        """How the weight's inputs are rounded."""
        return RowRounding.of(weight, self._fp8 if weight.parts[0].is_floating_point() and self._fp8 else torch.int8)


def scaled(weight: Weight) -> Scaled:
    """A weight of codes and scales. Raises TypeError for other layouts."""
    if not isinstance(weight, Scaled):
        raise TypeError(f"a weight in the layout {weight.layout}")
    return weight


def device_codes(weight: Scaled, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes as a device multiplies them, and float32 scales [out, groups]. The same bits are half the number in e4m3fnuz, and −0 is none
    there."""
    codes, scales = weight.parts
    if codes.dtype is dtype or dtype is not torch.float8_e4m3fnuz:
        return codes.contiguous(), scales.float()
    bits = codes.view(torch.uint8)
    return torch.where(bits == 0x80, 0, bits).to(torch.uint8).view(dtype), 2 * scales.float()


@dataclass(frozen=True, slots=True)
class ScaledMM:
    """codes [out, in], scales [1, out], bias [out]; the GEMM is that of torch's `_scaled_mm`."""

    codes: Tensor
    scales: Tensor
    bias: Tensor | None
    rounding: RowRounding
    round_rows: Callable[[Tensor, RowRounding], tuple[Tensor, Tensor]]

    @property
    def num_bytes(self) -> int:
        """See `Linear.num_bytes`."""
        return sum(part.numel() * part.itemsize for part in (self.codes, self.scales))

    @property
    def dense(self) -> Tensor | None:
        """None: it has codes."""
        return None

    def __call__(self, input: Tensor) -> Tensor:
        """See `Linear.__call__`."""
        rows = input.reshape(-1, input.shape[-1])
        if not rows.shape[0]:  # of a step that reads no logits
            return input.new_empty(*input.shape[:-1], self.codes.shape[0])
        codes, scales = self.round_rows(rows, self.rounding)
        out = torch._scaled_mm(codes, self.codes.t(), scales, self.scales, out_dtype=input.dtype)
        out = out if self.bias is None else out + self.bias
        return out.view(*input.shape[:-1], out.shape[-1])


class ScaledMMLinears(RoundingLinears):
    """The provider `scaled-mm`: e4m3 floats with a scale per output, multiplied by the vendor's GEMM through torch."""

    name = "scaled-mm"

    def __init__(self, fp8: torch.dtype | None, round_rows: Callable[[Tensor, RowRounding], tuple[Tensor, Tensor]]) -> None:
        """`round_rows` rounds inputs, as `rounded_rows`."""
        super().__init__(fp8)
        self._round_rows = round_rows

    def probe(self) -> str:
        """Whether torch has it."""
        return "" if hasattr(torch, "_scaled_mm") else f"torch {torch.__version__} has no _scaled_mm"

    def refusal(self, weight: Weight) -> str:
        """See `RoundingLinears.refusal`."""
        if reason := super().refusal(weight):
            return reason
        codes, scales = weight.parts
        if not codes.is_floating_point():
            return "codes of torch.int8"
        if scales.shape[1] > 1:
            return "scales by groups"
        return f"{weight.shape[0]} outputs are no multiple of {ALIGNED}" if weight.shape[0] % ALIGNED else ""

    def load(self, weight: Weight, bias: Tensor | None) -> Linear:
        """See `LinearProvider.load`."""
        rounding = self.rounding(scaled(weight))
        codes, scales = device_codes(scaled(weight), rounding.dtype)
        return ScaledMM(codes, scales.reshape(1, -1), bias, rounding, self._round_rows)
