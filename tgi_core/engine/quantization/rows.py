"""Inputs rounded to eight bits, for GEMMs of 8-bit codes by 8-bit codes (W8A8): what they are, in plain torch.

A row's inputs are divided by a scale and rounded: by its largest magnitude over the largest code, for all inputs or for each group that
shares a scale of the weight; or by the scale that a checkpoint was calibrated with. A row depends on no other row. Where an input is not
finite, neither is the row's scale, and so none of its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_core.engine.quantization.weight import Scaled


@dataclass(frozen=True, slots=True)
class RowRounding:
    """Codes of `dtype` for rows whose `group` inputs share a scale, which is `scale` if it is given."""

    dtype: torch.dtype
    group: int
    scale: float | None = None

    @classmethod
    def of(cls, weight: Scaled, dtype: torch.dtype) -> RowRounding:
        """The rounding of a weight's inputs to codes of a dtype. A calibrated scale holds for all inputs."""
        whole = weight.parts[1].shape[1] == 1
        doubled = 2 if dtype is torch.float8_e4m3fnuz else 1  # its numbers are half of those that the scale was calibrated for
        return cls(dtype, weight.group_size, weight.input_scale * doubled if whole and weight.input_scale is not None else None)

    @property
    def most(self) -> float:
        """The largest code."""
        return torch.finfo(self.dtype).max if self.dtype.is_floating_point else 127.0


def rounded_rows(rows: Tensor, rounding: RowRounding) -> tuple[Tensor, Tensor]:
    """rows [rows, inputs] → codes of the same shape, and float32 scales [rows, groups]."""
    values, most = rows.float().unflatten(1, (-1, rounding.group)), rounding.most
    largest = values.abs().amax(-1, keepdim=True)
    if rounding.scale is None:
        # a number over a tensor is the number times reciprocals, which rounds twice
        scales, inverses = largest / most, torch.where(largest > 0, torch.full_like(largest, most) / largest, 0)
    else:
        scales, inverses = rounding.scale + 0 * largest, 1 / torch.full_like(largest, rounding.scale)
    codes = (values * inverses).nan_to_num(0)
    codes = codes if rounding.dtype.is_floating_point else codes.round()
    return codes.clamp(-most, most).flatten(1).to(rounding.dtype), scales.squeeze(-1)


def rounded_product(rows: Tensor, weight: Scaled, rounding: RowRounding) -> Tensor:
    """float32 [rows, outputs]: rounded rows times a weight of codes without zero points, the reference of kernels."""
    codes, scales = rounded_rows(rows, rounding)
    inputs = (codes.float().unflatten(1, (-1, rounding.group)) * scales.unsqueeze(-1)).flatten(1)
    return inputs @ Scaled(weight.parts, torch.float32).dequantize().t()
