"""Checkpoints of `quant_method` gptq, as GPTQModel and AutoGPTQ write them: integers of 2, 3, 4 or 8 bits.

A layer holds `qweight` int32 [in · bits / 32, out], packed along in; `qzeros` int32 [groups, out · bits / 32], packed along out; `scales`
[groups, out]; and maybe `g_idx` int32 [in], the group of each input. The weight is (code − zero) · scale. Version 1 of the format stores
zero − 1, version 2 zero. Some files name the wrong version, but their values reveal it: symmetric zeros are all half the range. Source:
https://github.com/ModelCloud/GPTQModel, gptqmodel/nn_modules/qlinear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import FLOATS, check_field, check_parts, check_tensor, group_size_of
from tgi_core.engine.quantization.formats.fields import by_column, check_groups, grouped, signed, unpack_fields
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.headers import TensorEntry


class Gptq(Format):
    """Integers, zero points and scales by groups of inputs, which may be in any order."""

    mark = "qweight"

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`. All layers have one number of bits and one group size."""
        check_field("bits", settings.get("bits"), (2, 3, 4, 8))
        self._bits = int(settings["bits"])
        self._group = group_size_of("group_size", settings.get("group_size", -1))
        stored = settings.get("checkpoint_format", settings.get("format", "gptq"))
        check_field("checkpoint_format", stored, ("gptq", "gptq_v2"))
        self._ordered, self._symmetric = settings.get("desc_act") is True, settings.get("sym", True) is True
        check_field("dynamic", settings.get("dynamic") or None, (None,))
        self._stored_less_one = stored == "gptq"

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, int]:
        """See `Format.shape`."""
        order = ("g_idx",)
        check_parts(parts, ("qweight", "qzeros", "scales", *(order if self._ordered else ())), order)
        words, rows = check_tensor(parts, "qweight", ("I32",), (None, None)).shape
        columns = words * 32 // self._bits
        size = self._group or columns
        groups = -(-columns // size)
        if words * 32 % self._bits or rows * self._bits % 32:
            raise ValueError(f"qweight {[words, rows]} does not hold whole rows of {self._bits} bits")
        check_tensor(parts, "qzeros", ("I32",), (groups, rows * self._bits // 32))
        check_tensor(parts, "scales", FLOATS, (groups, rows))
        if "g_idx" in parts:
            check_tensor(parts, "g_idx", ("I32", "I64"), (columns,))
        return rows, columns

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        scales, half = parts["scales"].T.contiguous(), 1 << (self._bits - 1)
        codes = signed(unpack_fields(parts["qweight"], self._bits, 0).T.contiguous(), self._bits)
        stored = unpack_fields(parts["qzeros"], self._bits, 1)
        less_one = self._less_one(float((stored == half).float().mean()), float((stored == half - 1).float().mean()))
        zeros = (stored + 1) & (2 * half - 1) if less_one else stored
        centred, size = signed(zeros.T.contiguous(), self._bits), self._group or codes.shape[1]
        group = parts.get("g_idx")
        if group is None or torch.equal(group.long(), torch.arange(codes.shape[1]) // size):
            return grouped(codes, scales, centred, size, dtype)
        check_groups("g_idx", group, scales.shape[1], size)
        return by_column(codes, scales, centred, group.long(), dtype)

    def _less_one(self, at_half: float, below: float) -> bool:
        """Whether zero points are stored minus one, judging by the shares of them that are half the range, and one below. In a file
        marked as symmetric, the majority decides: it may name the wrong version, and one damaged zero point must not shift a whole
        layer."""
        enough = 0.5 if self._symmetric else 1
        return below >= enough or (self._stored_less_one and at_half < enough)
