"""Checking a linear provider on its device: products with the first rows of a weight, against torch in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.quantization.weight import Weight

TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""By how much of the largest of them outputs may differ, by dtype: a few times what rounding alone does."""

ROWS = 64
"""Rows of the weight that are checked."""

TOKENS = (1, 3, 33)
"""Rows of the inputs that are tried."""


def disagreement(provider: LinearProvider, weight: Weight) -> str:
    """What goes wrong when a provider multiplies by a few rows of this weight; empty when nothing does."""
    some = weight.rows(0, min(ROWS, weight.shape[0]))
    matrix = some.dequantize()
    try:
        linear = provider.load(some, None)
        for tokens in TOKENS:
            input = _inputs(tokens, some)
            found, wanted = linear(input).float(), F.linear(input.float(), matrix.float())
            limit = TOLERANCES[weight.dtype] * wanted.abs().max().clamp_min(1e-6)
            if not (found - wanted).abs().max() <= limit:
                return f"its products of {tokens} rows in {weight.dtype} are off by {(found - wanted).abs().max():.2g}"
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _inputs(tokens: int, weight: Weight) -> torch.Tensor:
    """Numbers from −1 to 1 that repeat with no power of two."""
    count = tokens * weight.shape[1]
    return ((torch.arange(count) % 257) / 128 - 1).view(tokens, -1).to(weight.device, weight.dtype)
