"""The types of blocks in GGUF files. A row is blocks of 32 or 256 numbers, each with float16 scales; K types have a scale, and maybe an
offset, of a few bits for 16 or 32 of the 256."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.fields import check_scales, grouped
from tgi_core.engine.quantization.weight import Affine, Weight
from tgi_core.gguf.header import BLOCKS as SIZES

Unpacked = tuple[Tensor, Tensor, Tensor | None]
"""Of blocks [n, bytes]: codes [n, elements]; scales and offsets [n, groups]. A number is code · scale − offset."""


@dataclass(frozen=True, slots=True)
class Block:
    """A type: numbers and bytes of a block, and how to unpack blocks."""

    elements: int
    size: int
    unpack: Callable[[Tensor], Unpacked]


def block_weight(stored: Tensor, name: str, dtype: torch.dtype) -> Weight:
    """The weight of rows of blocks [out, bytes of a row]. Raises ValueError."""
    block, rows = BLOCKS[name], stored.shape[0]
    codes, scales, offsets = block.unpack(stored.reshape(-1, block.size))
    codes, scales = codes.reshape(rows, -1), scales.reshape(rows, -1)
    size = codes.shape[1] // scales.shape[1]
    if offsets is None:
        return grouped(codes, scales, None, size, dtype)
    check_scales(scales, dtype)
    check_scales(offsets, dtype)
    return Affine((codes, scales, -offsets.reshape(rows, -1)), dtype)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16)


def _spread(bytes_: Tensor, bits: int, run: int) -> Tensor:
    """Fields of bytes [n, m], uint8 [n, m · 8 / bits]: the lowest fields of a run of bytes, then the next ones of the run."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).unsqueeze(-1)
    fields = (bytes_.unflatten(1, (-1, 1, run)) >> shifts) & ((1 << bits) - 1)
    return fields.flatten(1)


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """Bit i of 32 bits, for number i of each block [n, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((blocks[:, at : at + 4].unsqueeze(-1) >> shifts) & 1).flatten(1)


def _signed(fields: Tensor, half: int) -> Tensor:
    return (fields.to(torch.int16) - half).to(torch.int8)


def _q4_0(blocks: Tensor) -> Unpacked:
    return _signed(_spread(blocks[:, 2:], 4, 16), 8), _half(blocks, 0), None


def _q4_1(blocks: Tensor) -> Unpacked:
    return _spread(blocks[:, 4:], 4, 16), _half(blocks, 0), -_half(blocks, 2)


def _q5_0(blocks: Tensor) -> Unpacked:
    return _signed(_spread(blocks[:, 6:], 4, 16) | _fifth_bits(blocks, 2) << 4, 16), _half(blocks, 0), None


def _q5_1(blocks: Tensor) -> Unpacked:
    return _spread(blocks[:, 8:], 4, 16) | _fifth_bits(blocks, 4) << 4, _half(blocks, 0), -_half(blocks, 2)


def _q8_0(blocks: Tensor) -> Unpacked:
    return blocks[:, 2:].contiguous().view(torch.int8), _half(blocks, 0), None


def _q2_k(blocks: Tensor) -> Unpacked:
    """16 bytes of 4-bit scales and offsets, 64 of codes, d, d of offsets."""
    parts, d, least = blocks[:, :16], _half(blocks, 80).float(), _half(blocks, 82).float()
    return _spread(blocks[:, 16:80], 2, 32), d * (parts & 15).float(), least * (parts >> 4).float()


def _q3_k(blocks: Tensor) -> Unpacked:
    """32 bytes of third bits, 64 of codes, 12 of 6-bit scales, d."""
    codes = _spread(blocks[:, 32:96], 2, 32).to(torch.int8) - ((_spread(blocks[:, :32], 1, 32) ^ 1) << 2).to(torch.int8)
    low, high = _spread(blocks[:, 96:104], 4, 8), _spread(blocks[:, 104:108], 2, 4)
    return codes, _half(blocks, 108).float() * _signed(low | high << 4, 32).float(), None


def _scales_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """d, d of offsets, 12 bytes of 6-bit scales and offsets."""
    low, least, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((low & 63, high & 15 | low >> 2 & 48), 1)
    offsets = torch.cat((least & 63, high >> 4 | least >> 2 & 48), 1)
    return _half(blocks, 0).float() * scales.float(), _half(blocks, 2).float() * offsets.float()


def _q4_k(blocks: Tensor) -> Unpacked:
    """The scales, 128 bytes of codes."""
    return _spread(blocks[:, 16:], 4, 32), *_scales_k(blocks)


def _q5_k(blocks: Tensor) -> Unpacked:
    """The scales, 32 bytes of fifth bits, 128 of codes."""
    return _spread(blocks[:, 48:], 4, 32) | _spread(blocks[:, 16:48], 1, 32) << 4, *_scales_k(blocks)


def _q6_k(blocks: Tensor) -> Unpacked:
    """128 bytes of codes, 64 of two more bits, 16 scales of 8 bits, d."""
    codes = _signed(_spread(blocks[:, :128], 4, 64) | _spread(blocks[:, 128:192], 2, 32) << 4, 32)
    return codes, _half(blocks, 208).float() * blocks[:, 192:208].contiguous().view(torch.int8).float(), None


_UNPACKED: dict[str, Callable[[Tensor], Unpacked]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}

BLOCKS: dict[str, Block] = {
    name: Block(elements, size, _UNPACKED[name]) for name, elements, size in SIZES.values() if name in _UNPACKED
}
"""By name."""
