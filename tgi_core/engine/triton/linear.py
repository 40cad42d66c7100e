"""Quantized weights in Triton's kernels. Kernel modules are imported at launch, so this module can be imported without Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.quantization.checking import ROWS, disagreement
from tgi_core.engine.quantization.linear import Linear
from tgi_core.engine.quantization.weight import Affine, Scaled, Weight, code_range
from tgi_core.engine.selection import attempt
from tgi_core.engine.triton.packed_codes import HALVES, CodeLayout, PackedCodes, halves
from tgi_core.engine.triton.probing import probe

MOST_ROWS = {torch.bfloat16: 128, torch.float16: 128, torch.float32: 16}
"""Rows up to which weights are dequantized in registers. With more, dequantizing once and calling the vendor's GEMM should be faster; not
measured."""


@dataclass(frozen=True, slots=True)
class TritonLinear:
    """A packed weight, bias [out]; `dtype` is the model's."""

    weight: PackedCodes
    bias: Tensor | None
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """See `Linear.num_bytes`."""
        return self.weight.num_bytes

    @property
    def dense(self) -> Tensor | None:
        """None: it is packed."""
        return None

    def __call__(self, input: Tensor) -> Tensor:
        """See `Linear.__call__`."""
        from tgi_core.engine.triton.quantized import launch_dequantize, launch_gemm

        rows = input.reshape(-1, input.shape[-1])
        if rows.shape[0] > MOST_ROWS[self.dtype]:
            out = F.linear(rows, launch_dequantize(self.weight, self.dtype), self.bias)
        else:
            out = launch_gemm(rows, self.weight, self.bias)
        return out.view(*input.shape[:-1], self.weight.columns)


class TritonLinears:
    """The provider `triton`: integers of four and eight bits, and e4m3 floats, with scales and zero points or offsets by groups."""

    name = "triton"

    def probe(self) -> str:
        """Whether Triton is there."""
        return probe()

    def refusal(self, weight: Weight) -> str:
        """Why it does not support this weight (layout, dtype or sizes); empty if it does."""
        if not isinstance(weight, Scaled | Affine):
            return f"{weight.layout} weights are torch's"
        codes, groups = weight.parts[0], weight.parts[1].shape[1]
        if weight.dtype not in MOST_ROWS:
            return f"the dtype is {weight.dtype}"
        if groups > 1 and weight.group_size % HALVES[-1]:
            return f"groups of {weight.group_size} inputs are no multiples of {HALVES[-1]}"
        if codes.is_floating_point():
            return "" if codes.dtype is torch.float8_e4m3fn else f"codes of {codes.dtype}"
        return "" if codes.itemsize == 1 or code_range(codes)[1] < 256 else "codes of more than eight bits"

    def self_check(self, weight: Weight) -> str:
        """GEMMs with a few of its rows, and these rows dequantized, against torch."""
        return attempt(lambda: self._wrong_weights(weight) or disagreement(self, weight))

    def load(self, weight: Weight, bias: Tensor | None) -> Linear:
        """See `LinearProvider.load`. Its kernels are compiled now, so that no request waits for one."""
        from tgi_core.engine.triton.quantized import TILES

        linear, most = TritonLinear(packed(weight), bias, weight.dtype), MOST_ROWS[weight.dtype]
        for rows in (*(tile.rows for tile in TILES if tile.rows <= most), most + 1):
            linear(torch.zeros(rows, weight.shape[1], dtype=weight.dtype, device=weight.device))
        return linear

    def _wrong_weights(self, weight: Weight) -> str:
        from tgi_core.engine.triton.quantized import launch_dequantize

        some = weight.rows(0, min(ROWS, weight.shape[0]))
        same = torch.equal(launch_dequantize(packed(some), weight.dtype), some.dequantize())
        return "" if same else "dequantized weights differ from torch's"


def packed(weight: Weight) -> PackedCodes:
    """A weight's codes as the kernels read them: four bits each if their range allows. Raises TypeError for other layouts."""
    if not isinstance(weight, Scaled | Affine):
        raise TypeError(f"a weight in the layout {weight.layout}")
    codes, scales, *others = weight.parts
    depth = codes.shape[1]
    floats = codes.is_floating_point()
    base, span = (0, 256) if floats else code_range(codes)
    bits = 4 if span <= 16 else 8
    possible = halves(bits, weight.dtype.itemsize, amd=torch.version.hip is not None)
    half = next((half for half in possible if weight.group_size % half == 0), possible[0])
    layout = CodeLayout(bits, half, base, floats)
    unsigned = codes.view(torch.uint8) if floats else (codes.to(torch.int16) - base).to(torch.uint8)
    unsigned = F.pad(unsigned, (0, -depth % (half * layout.per_byte)))
    if layout.per_byte == 2:
        low, high = unsigned.unflatten(1, (-1, 2, half)).unbind(2)
        unsigned = (low | (high << 4)).flatten(1)
    scales, *others = (part.t().contiguous() for part in (scales, *others))
    zeros, offsets = (None, *others) if isinstance(weight, Affine) else (*others, None, None)[:2]
    return PackedCodes(unsigned.contiguous(), scales, zeros, offsets, depth, layout)
