"""Codes of a few bits, packed into words of 32."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.engine.quantization.weight import Dense, Scaled, Weight


def unpack_fields(words: Tensor, bits: int, dim: int) -> Tensor:
    """Fields uint8 of `bits` (2 to 8) bits of int32 words, lowest first, along a dimension. Fields may straddle words: 32 fields of 3 bits
    fill 3 words. Fields that begin in the last words and do not end there are left out."""
    words = words.movedim(dim, -1).clone(memory_format=torch.contiguous_format)
    if bits in (2, 4, 8):
        found = words.view(torch.uint8)
        if bits < 8:
            shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
            found = ((found.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(-2)
    else:
        wide = words.to(torch.int64) & 0xFFFFFFFF
        starts = torch.arange(words.shape[-1] * 32 // bits) * bits
        first = starts // 32
        pairs = wide[..., first] | (wide[..., (first + 1).clamp_max(words.shape[-1] - 1)] << 32)
        found = ((pairs >> (starts % 32)) & ((1 << bits) - 1)).to(torch.uint8)
    return found.movedim(-1, dim)


def signed(fields: Tensor, bits: int) -> Tensor:
    """Fields minus half their range, int8."""
    return (fields.to(torch.int16) - (1 << (bits - 1))).to(torch.int8)


def grouped(codes: Tensor, scales: Tensor, zeros: Tensor | None, size: int, dtype: torch.dtype) -> Weight:
    """The weight of codes [out, in] in groups of `size` columns, with scales and zero points [out, groups]; zero points that are all 0
    are left out. Dense if the last group is shorter."""
    check_scales(scales, dtype)
    zeros = None if zeros is None or not zeros.any() else zeros
    if codes.shape[1] % size == 0:
        return Scaled([part for part in (codes, scales, zeros) if part is not None], dtype)
    return by_column(codes, scales, zeros, torch.arange(codes.shape[1]) // size, dtype)


def by_column(codes: Tensor, scales: Tensor, zeros: Tensor | None, group: Tensor, dtype: torch.dtype) -> Weight:
    """The dense weight of codes [out, in] whose column k belongs to group[k]; see `Scaled.dequantize`. Raises ValueError."""
    check_scales(scales, dtype)
    wide = torch.promote_types(scales.dtype, dtype)
    plain = codes.to(wide) if zeros is None else codes.to(wide) - zeros.to(wide)[:, group]
    return Dense.of((plain * scales.to(wide)[:, group]).to(dtype))


def check_groups(name: str, group: Tensor, count: int, size: int) -> None:
    """Raise ValueError unless the groups [in] of inputs are 0 to count - 1, and none has more than `size` inputs."""
    if bool(((group < 0) | (group >= count)).any()):
        raise ValueError(f"{name} names groups from {int(group.min())} to {int(group.max())}; there are {count}")
    most = int(torch.bincount(group.long(), minlength=count).max())
    if most > size:
        raise ValueError(f"{name} puts {most} inputs in a group of {size}")


_LARGEST_CODE = 512
"""An upper bound on codes: 8-bit floats reach 448, differences of 8-bit integers 255."""


def check_scales(scales: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError unless all scales are so small that any scaled code is finite in `dtype`."""
    if not bool((scales.float().abs() <= torch.finfo(dtype).max / _LARGEST_CODE).all()):
        raise ValueError("the scales hold numbers that are not finite, or too large")
