"""Checkpoints of `quant_method` eetq, as transformers writes them: 8-bit integers with a scale per output, in the order of GPU kernels.

A layer holds `weight` int8 [in, out] and `weight_scales` float16 [out]; the weight is code · scale. Codes are stored plus 128 in the
layout of compute capability 7.5 and later, which is not that of its shape: two outputs alternate every 64 inputs, 16 inputs are permuted
for a matrix instruction, and the middle two of each four bytes are swapped. Volta has another layout; files don't say which one they use.
Source: https://github.com/NetEase-FuXi/EETQ, csrc/cutlass_kernels/cutlass_preprocessors.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import check_field, check_parts, check_tensor
from tgi_core.engine.quantization.formats.fields import grouped
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.headers import TensorEntry

_TILE = 64
"""Inputs of one output that are stored together."""
_TOGETHER = 2
"""Outputs whose tiles alternate."""
_INPUTS = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
"""The input stored at each of 16 places."""


class Eetq(Format):
    """Integers of 8 bits with a scale per output."""

    mark = "weight_scales"

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`."""
        check_field("weights", settings.get("weights", "int8"), ("int8",))

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, int]:
        """See `Format.shape`."""
        check_parts(parts, ("weight", self.mark))
        columns, rows = check_tensor(parts, "weight", ("I8",), (None, None)).shape
        if columns % _TILE or rows % _TOGETHER:
            raise ValueError(f"weight is {[columns, rows]}, which tiles of {[_TILE, _TOGETHER]} don't divide")
        check_tensor(parts, self.mark, ("F16",), (rows,))
        return rows, columns

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        columns, rows = parts["weight"].shape
        quads = parts["weight"].reshape(-1, 4)[:, [0, 2, 1, 3]]
        tiles = quads.reshape(rows // _TOGETHER, columns // _TILE, _TOGETHER, _TILE).transpose(1, 2)
        by_place = tiles.reshape(rows, columns // len(_INPUTS), len(_INPUTS))
        codes = torch.empty_like(by_place)
        codes[..., list(_INPUTS)] = by_place
        centred = (codes.view(torch.uint8) ^ 128).view(torch.int8)
        return grouped(centred.reshape(rows, columns), parts[self.mark].unsqueeze(1), None, columns, dtype)
