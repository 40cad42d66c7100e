"""The codes that a matrix can have: integers with a scale and a zero point per group of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST = 2.0**-14
"""The smallest scale: float16's smallest normal number."""


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Fields 0 … 2^bits - 1 of each group of `size` inputs stand for (field − zero) · scale; `scales` and `zeros` are [out, groups], and
    scales are numbers of float16."""

    bits: int
    size: int
    scales: Tensor
    zeros: Tensor

    def quantize(self, values: Tensor, group: int) -> Tensor:
        """The nearest fields of values [out] or [out, n] in a group, as floats."""
        scale, zero = self._of(values, group)
        return (values / scale + zero).round().clamp(0, 2**self.bits - 1)

    def dequantize(self, fields: Tensor, group: int) -> Tensor:
        """The values that fields [out] or [out, n] in a group stand for."""
        scale, zero = self._of(fields, group)
        return (fields - zero) * scale

    def fields(self, matrix: Tensor) -> Tensor:
        """The nearest fields uint8 [out, in] of a matrix in float32."""
        groups = matrix.unflatten(1, (-1, self.size)) / self.scales.unsqueeze(-1) + self.zeros.unsqueeze(-1)
        return groups.round_().clamp_(0, 2**self.bits - 1).flatten(1).to(torch.uint8)

    def matrix(self, fields: Tensor) -> Tensor:
        """The matrix [out, in] in float32 that its fields stand for."""
        groups = fields.float().unflatten(1, (-1, self.size))
        return ((groups - self.zeros.unsqueeze(-1)) * self.scales.unsqueeze(-1)).flatten(1)

    def _of(self, like: Tensor, group: int) -> tuple[Tensor, Tensor]:
        scale, zero = self.scales[:, group], self.zeros[:, group]
        return (scale, zero) if like.dim() == 1 else (scale.unsqueeze(1), zero.unsqueeze(1))


def asymmetric_quantizer(matrix: Tensor, bits: int, size: int) -> Quantizer:
    """The quantizer that spans each group's values of a matrix [out, in] in float32 and 0; zero points are whole numbers."""
    groups = matrix.unflatten(1, (-1, size))
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scales = ((high - low) / (2**bits - 1)).clamp_min(_LEAST).half().float()
    return Quantizer(bits, size, scales, (-low / scales).round().clamp(0, 2**bits - 1))


def symmetric_quantizer(matrix: Tensor, bits: int, size: int) -> Quantizer:
    """The symmetric quantizer that spans each group's values of a matrix [out, in] in float32; zero points are half the range, as kernels
    without zero points expect."""
    largest = matrix.unflatten(1, (-1, size)).abs().amax(-1)
    scales = (2 * largest / (2**bits - 1)).clamp_min(_LEAST).half().float()
    return Quantizer(bits, size, scales, torch.full_like(scales, 2 ** (bits - 1)))
