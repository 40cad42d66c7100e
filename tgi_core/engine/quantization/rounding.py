"""Quantizing plain weights when they are loaded: rounding to nearest, without calibration."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.engine.quantization.weight import Scaled

GROUP = 32
"""Inputs that share a scale and a zero point in four bits."""


def head_rounding(kind: str) -> str:
    """What the output head is rounded to where weights inside the model are rounded to `kind`: to eight bits, as llama.cpp and OpenVINO do,
    since it is a large part of a small model; "" for 8-bit floats, with which TGI and vLLM keep it."""
    return "int8" if kind in ("int8", "int4") else ""


def rounded(matrix: Tensor, kind: str, dtype: torch.dtype) -> Scaled:
    """A matrix [out, in] as codes, for a model that runs in `dtype`: "fp8" or "int8" with a scale per output; "int4" with a scale and a
    zero point per group of inputs, or int8 if groups do not divide them."""
    values = matrix.float()
    if kind == "fp8":
        scales = (values.abs().amax(1, keepdim=True) / 448).clamp_min(torch.finfo(torch.float32).tiny)
        return Scaled(((values / scales).to(torch.float8_e4m3fn), scales), dtype)
    if kind == "int8" or values.shape[1] % GROUP:
        scales = (values.abs().amax(1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        return Scaled(((values / scales).round().to(torch.int8), scales), dtype)
    grouped = values.unflatten(1, (-1, GROUP))
    low, high = grouped.amin(-1).clamp_max(0), grouped.amax(-1).clamp_min(0)
    scales = ((high - low) / 15).clamp_min(2.0**-24)  # the smallest float16 above 0
    halves = scales.half().float()  # as checkpoints store them
    scales = halves if bool(halves.isfinite().all()) else scales
    zeros = (-8 - low / scales).round()
    codes = (grouped / scales.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(-8, 7)
    return Scaled((codes.flatten(1).to(torch.int8), scales, zeros.to(torch.int8)), dtype)
