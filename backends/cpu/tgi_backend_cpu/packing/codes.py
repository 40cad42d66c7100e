"""Codes of four or eight bits: decoded to bfloat16 right before they are multiplied (`native/codes.h`), or multiplied as they are with rows
that are rounded to eight bits (`native/int8.h`)."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_backend_cpu.interface import Layout, UnpackedCodes
from tgi_backend_cpu.kernels import Arena, Memory
from tgi_backend_cpu.packing.panels import Unpacked
from tgi_core.engine.quantization.weight import Scaled

_STEP = 8
"""Groups have multiples of so many inputs: they are decoded at a time."""


class CodePanels:
    """Supports integers with scales, in groups of multiples of eight inputs, in models that run in bfloat16; of the other layout's bits."""

    def __init__(self, layout: Layout) -> None:
        """`layout` is CODES4, for codes from -8 to 7, CODES8, or INT8, for codes without zero points in kernels that round rows."""
        self.layout = layout
        self._bits = 4 if layout is Layout.CODES4 else 8

    def pack(self, asked: Unpacked, arena: Arena) -> int | None:
        """See `PackedLayout.pack`."""
        weights = [weight for weight in asked.weights if isinstance(weight, Scaled) and weight.parts[0].dtype is torch.int8]
        groups = {weight.parts[1].shape[1] for weight in weights}
        if asked.dtype is not torch.bfloat16 or len(weights) < len(asked.weights) or len(groups) != 1:
            return None
        [count], size = groups, weights[0].group_size
        if (count > 1 and size % _STEP) or (self._bits == 4 and not all(_fit_nibbles(weight) for weight in weights)):
            return None
        has_zeros = any(len(weight.parts) > 2 for weight in weights)
        if self.layout is Layout.INT8 and (has_zeros or not asked.kernels.int8_rows):
            return None
        codes = self._panels(asked, [weight.parts[0].to(torch.int16) for weight in weights], asked.depth)
        scales = self._panels(asked, [weight.parts[1].float() for weight in weights], count)
        zeros = None
        if has_zeros:
            points = [weight.parts[2] if len(weight.parts) > 2 else torch.zeros(weight.parts[1].shape) for weight in weights]
            zeros = self._panels(asked, [point.float() for point in points], count)
        _, line_bytes = asked.sizes(True, 2)
        unpacked = UnpackedCodes(
            codes.address,
            scales.address,
            zeros.address if zeros is not None else None,
            asked.count,
            line_bytes // 64,
            -(-asked.depth // 2),
            count,
            -(-size // 2),
            self._bits,
        )
        call, pool = asked.kernels.call, asked.kernels.pool
        write = call.tgi_pack_int8 if self.layout is Layout.INT8 else call.tgi_pack_codes
        to = arena.take(write(pool, unpacked, None))
        write(pool, unpacked, to)
        return to

    def _panels(self, asked: Unpacked, matrices: list[Tensor], depth: int) -> Memory:
        count, panel_bytes = asked.sizes(matrices[0].itemsize == 2, depth)
        memory = Memory(asked.kernels, count * panel_bytes)
        asked.write_matrices(memory.address, matrices)
        return memory


def _fit_nibbles(weight: Scaled) -> bool:
    low, high = torch.aminmax(weight.parts[0])
    return int(low) >= -8 and int(high) <= 7
