"""Scales of 8-bit codes: one for all, one per output, per group of inputs, or per block of both."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.checks import FLOATS
from tgi_core.engine.quantization.formats.fields import grouped
from tgi_core.engine.quantization.weight import Scaled, Weight
from tgi_core.engine.weights.headers import TensorEntry

Block = tuple[int, int]


def blocks(field: str, value: object) -> Block | None:
    """A block's rows and columns; None if there are no blocks. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(size) is int and 0 < size < 1 << 20 for size in value):
        raise ValueError(f"{field} is {str(value)[:60]}; supported: none or two sizes, such as [128, 128]")
    return value[0], value[1]


def check_scale(parts: Mapping[str, TensorEntry], name: str, shape: tuple[int, int], block: Block | None) -> None:
    """Raise ValueError unless a tensor holds scales of a weight [out, in]; without blocks, one row of them or groups that divide `in`."""
    scale, (rows, columns) = parts[name], shape
    one = scale.shape in ((), (1,), (1, 1))
    by_row = scale.shape == (rows,)
    if block is not None:
        fits = scale.shape == (-(-rows // block[0]), -(-columns // block[1]))
    else:
        fits = len(scale.shape) == 2 and scale.shape[0] == rows and scale.shape[1] > 0 and columns % scale.shape[1] == 0
    if scale.dtype not in (*FLOATS, "F8_E8M0") or not (one or by_row or fits):
        raise ValueError(f"{name} is {scale.dtype} {list(scale.shape)} for a weight of {list(shape)}")


def with_input_scale(weight: Weight, scale: Tensor | None) -> Weight:
    """The weight with the scale of its inputs that a checkpoint was calibrated with, if there is one for all of them. Raises ValueError for
    a value that is no scale."""
    if scale is None or scale.numel() != 1 or not isinstance(weight, Scaled):
        return weight
    value = float(scale)
    if not torch.finfo(torch.float32).tiny <= value < math.inf:
        raise ValueError(f"the scale of inputs is {value:.3g}")
    return Scaled(weight.parts, weight.dtype, value)


def scaled(codes: Tensor, scale: Tensor, block: Block | None, dtype: torch.dtype) -> Weight:
    """The weight of codes [out, in] and a checked tensor of scales. Raises ValueError for numbers that are not finite."""
    rows, columns = codes.shape
    if codes.dtype is torch.float8_e4m3fn and bool((codes.view(torch.uint8) & 127 == 127).any()):
        raise ValueError("weight holds numbers that are not finite")
    if scale.dtype is torch.float8_e8m0fnu:
        scale = scale.float()
    if scale.numel() == 1:
        return grouped(codes, scale.reshape(1, 1).expand(rows, 1), None, columns, dtype)
    if scale.dim() == 1:
        return grouped(codes, scale.unsqueeze(1), None, columns, dtype)
    if block is None:
        return grouped(codes, scale, None, columns // scale.shape[1], dtype)
    return grouped(codes, scale.repeat_interleave(block[0], 0)[:rows], None, block[1], dtype)
