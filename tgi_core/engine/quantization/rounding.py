"""Quantizing plain weights when they are loaded: rounding to nearest, without calibration."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.engine.quantization.weight import Scaled

GROUP = 32
"""Inputs that share a scale and a zero point in four bits."""
_PIECE = 1 << 20
"""Weights that are rounded at a time, of sixteen bytes while they are: an output head is large."""


def head_rounding(kind: str) -> str:
    """What the output head is rounded to where weights inside the model are rounded to `kind`: to eight bits, as llama.cpp and OpenVINO do,
    since it is a large part of a small model; "" for 8-bit floats, with which TGI and vLLM keep it."""
    return "int8" if kind in ("int8", "int4") else ""


def rounded(matrix: Tensor, kind: str, dtype: torch.dtype) -> Scaled:
    """A matrix [out, in] as codes, for a model that runs in `dtype`: "fp8" or "int8" with a scale per output; "int4" with a scale and a
    zero point per group of inputs, or int8 if groups do not divide them."""
    step = max(1, _PIECE // matrix.shape[1])
    pieces = [slice(first, first + step) for first in range(0, matrix.shape[0], step)]
    if kind not in ("fp8", "int8") and matrix.shape[1] % GROUP == 0:
        return _grouped(matrix, pieces, dtype)
    codes = torch.empty(matrix.shape, dtype=torch.float8_e4m3fn if kind == "fp8" else torch.int8, device=matrix.device)
    scales = torch.empty(matrix.shape[0], 1, device=matrix.device)
    for piece in pieces:
        values = matrix[piece].float()
        own = (values.abs().amax(1, keepdim=True) / (448 if kind == "fp8" else 127)).clamp_min(torch.finfo(torch.float32).tiny)
        values = values / own
        codes[piece], scales[piece] = values if kind == "fp8" else values.round(), own
    return Scaled((codes, scales), dtype)


def _grouped(matrix: Tensor, pieces: list[slice], dtype: torch.dtype) -> Scaled:
    """Four bits in groups. Scales are float16, as checkpoints store them, if those of all pieces fit."""
    low, high = torch.cat([torch.stack(_groups(matrix[piece]).aminmax(dim=-1)) for piece in pieces], 1)
    low, high = low.clamp_max(0), high.clamp_min(0)
    scales = ((high - low) / 15).clamp_min(2.0**-24)  # the smallest float16 above 0
    halves = scales.half().float()
    scales = halves if bool(halves.isfinite().all()) else scales
    zeros, codes = (-8 - low / scales).round(), torch.empty_like(matrix, dtype=torch.int8)
    for piece in pieces:
        rounded = _groups(matrix[piece]) / scales[piece].unsqueeze(-1) + zeros[piece].unsqueeze(-1)
        codes[piece] = rounded.round().clamp(-8, 7).flatten(1)
    return Scaled((codes, scales, zeros.to(torch.int8)), dtype)


def _groups(rows: Tensor) -> Tensor:
    return rows.float().unflatten(1, (-1, GROUP))
