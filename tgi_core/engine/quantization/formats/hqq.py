"""Checkpoints of `quant_method` hqq, as the hqq package saves them in safetensors: integers of 1 to 8 bits with float zero points.

A layer holds `W_q`, codes in bytes (or int32, with 3 bits), each of which holds one code from each of several equal parts of the matrix,
the first part in the highest bits; `scale` and `zero`; and the settings, one tensor each. Groups are rows of the matrix reshaped to
[groups, size] (axis 1), or columns of it as [size, groups] (axis 0). The weight is (code − zero) · scale. Source:
https://github.com/mobiusml/hqq, core/quantize.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import FLOATS, check_field, check_parts, check_tensor
from tgi_core.engine.quantization.formats.fields import check_scales
from tgi_core.engine.quantization.weight import Dense, Scaled, Weight
from tgi_core.engine.weights.headers import TensorEntry

_WANTED = ("W_q", "scale", "zero", "shape", "nbits", "axis", "group_size")
_OPTIONAL = (
    "channel_wise",
    "compute_dtype",
    "encoded_state_dict",
    "offload_meta",
    "optimize",
    "packing",
    "quant_scale",
    "quant_zero",
    "round_zero",
    "stores_quant_config",
    "unpack_view_dtype",
    "view_as_float",
)

_PER_ITEM = {8: 1, 6: 1, 5: 1, 4: 2, 3: 10, 2: 4, 1: 8}
"""Codes in a byte, or in an int32 of 3 bits each."""


class Hqq(Format):
    """Integers with float scales and zero points."""

    mark = "W_q"

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`. The files have the settings of each layer."""

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, int]:
        """See `Format.shape`."""
        check_parts(parts, _WANTED, _OPTIONAL)
        for name in ("quant_scale", "quant_zero", "view_as_float"):
            if name in parts and read(parts[name]).any():
                raise ValueError(f"{name} is set, which is not supported")
        check_tensor(parts, "shape", ("I64", "I32"), (2,))
        rows, columns = read(parts["shape"]).tolist()
        bits, axis, size = (_setting(parts, read, name) for name in ("nbits", "axis", "group_size"))
        check_field("nbits", bits, tuple(_PER_ITEM))
        check_field("axis", axis, (0, 1))
        if min(rows, columns, size) < 1 or max(rows, columns) >= 1 << 31 or rows * columns % size or (axis and columns % size):
            raise ValueError(f"shape is {[rows, columns]}, which groups of {size} don't divide")
        groups = rows * columns // size
        high, wide = (groups, size) if axis else (size, groups)
        check_tensor(parts, "W_q", ("I32",) if bits == 3 else ("U8",), (-(-high // _PER_ITEM[bits]), wide))
        for name in ("scale", "zero"):
            check_tensor(parts, name, FLOATS, (groups, 1) if axis else (1, groups))
        return rows, columns

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`. Codes in groups of adjacent inputs are kept if a zero point minus half the range is exact."""
        bits, axis = int(parts["nbits"]), int(parts["axis"])
        rows, columns = parts["shape"].tolist()
        scales, zeros = parts["scale"].float(), parts["zero"].float()
        check_scales(scales, dtype)
        if not bool((zeros.abs() < 1 << 16).all()):
            raise ValueError("zero holds numbers that are not finite, or too large")
        high = scales.shape[0] if axis else math.prod((rows, columns)) // scales.shape[1]
        codes, half = _codes(parts["W_q"], bits)[:high], 1 << (bits - 1)
        centred = zeros - half
        if axis == 0 or not torch.equal(centred + half, zeros):
            return Dense.of(((codes.float() - zeros) * scales).reshape(rows, columns).to(dtype))
        signed = (codes.to(torch.int16) - half).to(torch.int8).reshape(rows, columns)
        return Scaled((signed, scales.reshape(rows, -1), centred.reshape(rows, -1)), dtype)


def _codes(stored: Tensor, bits: int) -> Tensor:
    """Codes uint8, with the parts one below the other."""
    count = _PER_ITEM[bits]
    width = 8 if count == 1 else bits
    shifts = [width * (count - 1 - part) for part in range(count)]
    return torch.cat([(stored >> shift & ((1 << width) - 1)).to(torch.uint8) for shift in shifts])


def _setting(parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor], name: str) -> int:
    found = read(parts[name])
    if found.numel() != 1 or found.is_floating_point():
        raise ValueError(f"{name} is {parts[name].dtype} {list(parts[name].shape)}, not a whole number")
    return int(found.item())
