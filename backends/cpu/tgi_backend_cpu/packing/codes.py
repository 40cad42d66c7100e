"""Codes of four or eight bits, integers, e4m3 floats or indices into a codebook: decoded to bfloat16 right before they are multiplied
(`native/codes.h`). Integers may also be multiplied as they are with rows that are rounded to eight bits (`native/int8.h`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgi_backend_cpu.interface import Layout, Panels, UnpackedCodes
from tgi_backend_cpu.kernels import Arena, Memory
from tgi_backend_cpu.packing.panels import Unpacked
from tgi_core.engine.quantization.weight import Affine, Grouped, Levels, Weight

_STEP = 8
"""Groups must have a multiple of this many inputs, which are decoded at a time."""
_PIECE = 1 << 22
"""Codes that are unpacked at a time, of four bytes while they are."""


@dataclass(frozen=True, slots=True)
class _Codes:
    """Numbers (code − middle − zero) · scale + offset: codes [out, in], integers; scales, zeros and offsets [out, groups], float32. Floats
    are given by their bytes; they and indices into a codebook have scales alone."""

    codes: Tensor
    middle: int
    scales: Tensor
    zeros: Tensor | None
    offsets: Tensor | None

    @classmethod
    def of(cls, weight: Grouped) -> _Codes:
        """The numbers of a weight. Unsigned codes are counted from the middle of their range, and offsets account for that. A
        zero point that is not a code, as in HQQ's files, becomes an offset."""
        codes, scales, *others = weight.parts
        scales = scales.float()
        if codes.is_floating_point():
            return cls(codes.view(torch.int8), 0, scales, None, None)
        if isinstance(weight, Affine):
            most = int(codes.max())
            middle = 0 if most < 8 else 8 if most < 16 else 128 if most > 127 else 0
            return cls(codes, middle, scales, None, others[0].float() + middle * scales)
        if not others:
            return cls(codes, 0, scales, None, None)
        zeros = others[0].float()
        found = cls(codes, 0, scales, zeros, None)
        half = 8 if found.fit_nibbles else 128
        if bool(((zeros == zeros.round()) & (zeros >= -half) & (zeros < half)).all()):
            return found
        return replace(found, zeros=None, offsets=-zeros * scales)

    @property
    def fit_nibbles(self) -> bool:
        """Whether four bits hold the codes."""
        low, high = torch.aminmax(self.codes)
        return int(low) - self.middle >= -8 and int(high) - self.middle <= 7

    def counted(self, first: int, last: int) -> Tensor:
        """The codes of rows first…last-1, counted from their middle, int16."""
        codes = self.codes[first:last].to(torch.int16)
        return codes - self.middle if self.middle else codes

    def in_groups(self, size: int) -> _Codes:
        """The same numbers in groups of `size` inputs, a divisor of the present group size."""
        times = self.codes.shape[1] // self.scales.shape[1] // size
        zeros, offsets = (None if part is None else part.repeat_interleave(times, 1) for part in (self.zeros, self.offsets))
        return replace(self, scales=self.scales.repeat_interleave(times, 1), zeros=zeros, offsets=offsets)

    def without_zeros(self) -> _Codes:
        """The same numbers, to float32's precision, with offsets instead of zero points."""
        if self.zeros is None:
            return self
        return replace(self, zeros=None, offsets=_or_zeros(self.offsets, self.scales) - self.zeros * self.scales)


class CodePanels:
    """Supports codes of one kind in groups of multiples of eight inputs, in models that run in bfloat16. Integers have the other layout's
    bits, or other groups, only if other merged weights need this layout."""

    def __init__(self, layout: Layout) -> None:
        """`layout` is CODES4 or INT4, for codes of a range of 16, CODES8 or INT8; INT4 and INT8 in kernels that round rows. E4M3 is for
        floats, LEVELS for indices into one codebook, whose numbers are rounded to bfloat16."""
        self.layout = layout
        self._bits = 4 if layout in (Layout.CODES4, Layout.INT4, Layout.LEVELS) else 8
        self._rounds = layout in (Layout.INT4, Layout.INT8)

    def pack(self, asked: Unpacked, arena: Arena) -> int | None:
        """See `PackedLayout.pack`."""
        if asked.dtype is not torch.bfloat16 or (self._rounds and not asked.kernels.int8_rows):
            return None
        found = _common(asked.weights, _KINDS.get(self.layout, _are_integers))
        levels = torch.tensor(asked.weights[0].levels) if isinstance(asked.weights[0], Levels) else None
        if found is None or (self._bits == 4 and levels is None and not all(own.fit_nibbles for own in found)):
            return None
        if any(own.offsets is not None for own in found):
            found = [own.without_zeros() for own in found]
        count = found[0].scales.shape[1]
        scales = self._panels(asked, [own.scales for own in found], count)
        zeros, offsets = (
            self._panels(asked, [_or_zeros(part, own.scales) for part, own in zip(parts, found, strict=True)], count)
            if any(part is not None for part in parts)
            else None
            for parts in ([own.zeros for own in found], [own.offsets for own in found])
        )
        blocks = asked.sizes(True, 2)[1] // 64
        unpacked = UnpackedCodes(
            None,
            scales.address,
            zeros.address if zeros is not None else None,
            offsets.address if offsets is not None else None,
            None if levels is None else levels.data_ptr(),
            asked.count,
            blocks,
            -(-asked.depth // 2),
            count,
            -(-asked.depth // count // 2),
            bits=self._bits,
        )
        call, pool = asked.kernels.call, asked.kernels.pool
        write = call.tgi_pack_int8 if self._rounds else call.tgi_pack_codes
        to = arena.take(write(pool, unpacked, None))
        for unpacked.first, unpacked.last in _pieces(asked, 16 * blocks):
            rows = (16 * blocks * unpacked.first, 16 * blocks * unpacked.last if len(found) == 1 else asked.columns)
            codes = self._panels(asked, [own.counted(*rows) for own in found], asked.depth, unpacked.last - unpacked.first)
            unpacked.codes = codes.address
            write(pool, unpacked, to)
        return to

    def _panels(self, asked: Unpacked, matrices: list[Tensor], depth: int, count: int = 0) -> Memory:
        """The matrices in panels: in all of the weight's, or in `count`."""
        every, panel_bytes = asked.sizes(matrices[0].itemsize == 2, depth)
        count = count or every
        memory = Memory(asked.kernels, count * panel_bytes)
        asked.write_matrices(memory.address, matrices)
        return memory


def _pieces(asked: Unpacked, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of panels of `width` outputs that are unpacked at a time: a single weight may be large, such as an output head."""
    alone = len(asked.weights) == 1 and asked.panels is Panels.PLAIN
    step = max(1, _PIECE // (width * asked.depth)) if alone else asked.count
    for first in range(0, asked.count, step):
        yield first, min(asked.count, first + step)


def _common(weights: Sequence[Weight], of_kind: Callable[[Sequence[Grouped]], bool]) -> list[_Codes] | None:
    """Weights of a kind in groups of one size; None if some are not, or the groups don't fit."""
    grouped = [weight for weight in weights if isinstance(weight, Grouped)]
    if len(grouped) < len(weights) or not of_kind(grouped):
        return None
    size = math.gcd(*(weight.group_size for weight in grouped))
    if size < grouped[0].shape[1] and size % _STEP:
        return None
    return [_Codes.of(weight).in_groups(size) for weight in grouped]


def _are_integers(weights: Sequence[Grouped]) -> bool:
    return not any(isinstance(weight, Levels) or weight.parts[0].is_floating_point() for weight in weights)


def _are_e4m3(weights: Sequence[Grouped]) -> bool:
    """Whether the weights are floats of e4m3 with scales alone, and all of them are numbers."""
    kinds = all(weight.parts[0].dtype is torch.float8_e4m3fn and len(weight.parts) == 2 for weight in weights)
    return kinds and not any(bool(weight.parts[0].isnan().any()) for weight in weights)


def _share_levels(weights: Sequence[Grouped]) -> bool:
    """Whether the codes are indices into one codebook."""
    return len({weight.levels if isinstance(weight, Levels) else () for weight in weights}) == 1 and isinstance(
        weights[0], Levels
    )


_KINDS = {Layout.E4M3: _are_e4m3, Layout.LEVELS: _share_levels}


def _or_zeros(part: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if part is None else part
