"""How the kernels read quantized weights: codes as bytes, by output. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

HALVES = (64, 32, 16)
"""Inputs that a tile may have; one must divide the groups."""


def halves(bits: int, itemsize: int, amd: bool) -> tuple[int, ...]:
    """Those for a kind of codes and inputs, best first. The most would spill registers in float32, and on AMD's chips with codes of four
    bits."""
    return HALVES[1:] if itemsize == 4 or (amd and bits == 4) else HALVES


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """How codes are stored, as a constant of a kernel: of `bits` bits; those of a byte are `half` inputs apart. The lowest integer code is
    `base`; `floats` are e4m3."""

    bits: int
    half: int
    base: int = 0
    floats: bool = False

    @property
    def per_byte(self) -> int:
        """Codes in a byte."""
        return 8 // self.bits


@dataclass(frozen=True, slots=True)
class PackedCodes:
    """A weight [columns, depth] as the kernels read it: `codes` uint8 [columns, bytes]; `scales`, `zeros`, `offsets` [groups, columns]."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    offsets: Tensor | None
    depth: int
    layout: CodeLayout

    @property
    def columns(self) -> int:
        """Outputs."""
        return self.codes.shape[0]

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        parts = (self.codes, self.scales, self.zeros, self.offsets)
        return sum(part.numel() * part.itemsize for part in parts if part is not None)
