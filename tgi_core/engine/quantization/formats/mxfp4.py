"""Checkpoints of `quant_method` mxfp4, such as gpt-oss: experts in 4-bit floats, with a power of two as the scale of every 32.

A stacked weight `X` [experts, in, out] is stored transposed: `X_blocks` uint8 [experts, out, in / 32, 16], two E2M1 floats to a byte, the
low half first, and `X_scales` uint8 [experts, out, in / 32], 2^(value − 127).
Source: https://github.com/openai/gpt-oss, gpt_oss/torch/weights.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import check_parts, check_tensor
from tgi_core.engine.quantization.formats.fields import check_scales
from tgi_core.engine.quantization.formats.floats4 import e2m1_codes, power_of_two
from tgi_core.engine.quantization.weight import Dense, Weight
from tgi_core.engine.weights.headers import TensorEntry


class Mxfp4(Format):
    """Stacked experts. Their weight has no linear layer of its own, so it is dense."""

    mark = "blocks"

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`."""

    def locate(self, name: str) -> tuple[str, str]:
        """See `Format.locate`. Parts follow the name of the weight itself after an underscore."""
        weight, _, part = name.rpartition("_")
        return (weight, part) if part in ("blocks", "scales") else super().locate(name)

    def weight_name(self, layer: str) -> str:
        """See `Format.weight_name`."""
        return layer

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, ...]:
        """See `Format.shape`."""
        check_parts(parts, ("blocks", "scales"))
        experts, rows, groups, _ = check_tensor(parts, "blocks", ("U8",), (None, None, None, 16)).shape
        check_tensor(parts, "scales", ("U8", "F8_E8M0"), (experts, rows, groups))
        return experts, groups * 32, rows

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        scales = power_of_two(parts["scales"]) / 2
        check_scales(scales, dtype)
        numbers = e2m1_codes(parts["blocks"]).float() * scales.unsqueeze(-1)
        return Dense.of(numbers.flatten(2).transpose(1, 2).to(dtype))
