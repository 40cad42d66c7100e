"""Checkpoints of `quant_method` awq in its GEMM layout, as AutoAWQ writes them: integers of 4 bits.

A layer holds `qweight` int32 [in, out / 8], `qzeros` int32 [groups, out / 8] and `scales` [groups, out]; the weight is
(code − zero) · scale. Field i of a word is output (0, 2, 4, 6, 1, 3, 5, 7)[i] of its eight. Source: https://github.com/casper-hansen/AutoAWQ,
awq/modules/linear/gemm.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import FLOATS, check_field, check_parts, check_tensor, group_size_of
from tgi_core.engine.quantization.formats.fields import grouped, signed, unpack_fields
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.headers import TensorEntry

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The field of a word that holds each of its eight outputs."""


class Awq(Format):
    """Integers of 4 bits, zero points and scales by groups of inputs."""

    mark = "qweight"

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`."""
        check_field("bits", settings.get("bits", settings.get("w_bit")), (4,))
        self._group = group_size_of("group_size", settings.get("group_size", settings.get("q_group_size", -1)))
        stored = str(settings.get("version") or settings.get("format") or "gemm").lower()
        check_field("version", stored, ("gemm",))

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, int]:
        """See `Format.shape`."""
        check_parts(parts, ("qweight", "scales"), ("qzeros",))
        columns, words = check_tensor(parts, "qweight", ("I32",), (None, None)).shape
        size = self._group or columns
        if columns % size:
            raise ValueError(f"group_size {size} does not divide the {columns} inputs of qweight")
        check_tensor(parts, "scales", FLOATS, (columns // size, 8 * words))
        if "qzeros" in parts:
            check_tensor(parts, "qzeros", ("I32",), (columns // size, words))
        return 8 * words, columns

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        codes, scales = _outputs(parts["qweight"]), parts["scales"].T.contiguous()
        zeros = _outputs(parts["qzeros"]) if "qzeros" in parts else None
        return grouped(codes, scales, zeros, self._group or codes.shape[1], dtype)


def _outputs(words: Tensor) -> Tensor:
    """Codes int8 [out, rows] of words [rows, out / 8]."""
    fields = unpack_fields(words, 4, 1).unflatten(1, (-1, 8))[..., list(_PLACES)].flatten(1)
    return signed(fields.T.contiguous(), 4)
