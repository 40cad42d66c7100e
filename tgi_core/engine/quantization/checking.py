"""Self-checks of linear providers on their device: GEMMs with the first rows of a weight, compared with torch in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.quantization.weight import Weight

TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""The allowed difference relative to the largest output, by dtype: a few times the rounding error."""

ROWS = 64
"""Rows of the weight that are checked."""

TOKENS = (1, 3, 33, 130)
"""Rows of the inputs that are tried."""


def product(input: Tensor, weight: Weight) -> Tensor:
    """float32 [tokens, outputs]: the inputs times the dequantized weight."""
    return F.linear(input.float(), weight.dequantize().float())


def disagreement(provider: LinearProvider, weight: Weight, expected: Callable[[Tensor, Weight], Tensor] = product) -> str:
    """What is wrong with a provider's GEMM with a few rows of this weight; empty if it is right. `expected` is what it should be."""
    some = weight.rows(0, min(ROWS, weight.shape[0]))
    try:
        linear = provider.load(some, None)
        for tokens in TOKENS:
            input = _inputs(tokens, some)
            found, wanted = linear(input).float(), expected(input, some)
            limit = TOLERANCES[weight.dtype] * wanted.abs().max().clamp_min(1e-6)
            if not (found - wanted).abs().max() <= limit:
                return f"its GEMM of {tokens} rows in {weight.dtype} is off by {(found - wanted).abs().max():.2g}"
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _inputs(tokens: int, weight: Weight) -> torch.Tensor:
    """Values from −1 to 1 with a period that is not a power of two."""
    count = tokens * weight.shape[1]
    return ((torch.arange(count) % 257) / 128 - 1).view(tokens, -1).to(weight.device, weight.dtype)
