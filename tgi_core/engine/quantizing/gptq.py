"""GPTQ: codes of a matrix that lose the least in its products with its inputs.

Inputs are rounded one after the other, and each one's error is compensated by those not yet rounded, by the inverse of the inputs' second
moments. Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022, algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.engine.quantizing.quantizer import Quantizer, symmetric_quantizer

_BLOCK = 128
"""Inputs after which the errors are carried over to all later ones at once."""


def gptq_fields(matrix: Tensor, moments: Tensor, bits: int, size: int, damping: float, ordered: bool) -> tuple[Tensor, Quantizer]:
    """Fields uint8 [out, in] of a matrix [out, in] in float32, and their quantizer. `moments` [in, in] is the sum of x·xᵀ over inputs x;
    `damping` is added to its diagonal, as a fraction of the mean. `ordered`: the inputs with the largest moments are rounded first
    (act-order); groups stay those of adjacent inputs."""
    columns = matrix.shape[1]
    quantizer = symmetric_quantizer(matrix, bits, size)
    moments, weight = moments.clone(), matrix.clone()
    diagonal = moments.diagonal()
    unused = diagonal == 0
    diagonal[unused] = 1
    weight[:, unused] = 0
    order = torch.argsort(diagonal, descending=True, stable=True) if ordered else torch.arange(columns)
    weight, moments = weight[:, order], moments[order][:, order]
    moments.diagonal().add_(damping * moments.diagonal().mean())
    inverse = _factor(moments)
    fields = torch.empty_like(weight)
    for start in range(0, columns, _BLOCK):
        end = min(start + _BLOCK, columns)
        errors = torch.empty(weight.shape[0], end - start)
        for column in range(start, end):
            group, value = int(order[column]) // size, weight[:, column]
            fields[:, column] = quantizer.quantize(value, group)
            errors[:, column - start] = (value - quantizer.dequantize(fields[:, column], group)) / inverse[column, column]
            weight[:, column:end] -= errors[:, column - start].unsqueeze(1) * inverse[column, column:end]
        weight[:, end:] -= errors @ inverse[start:end, end:]
    back = torch.argsort(order)
    return fields[:, back].to(torch.uint8), quantizer


def _factor(moments: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse, in double precision: sums over many tokens are badly conditioned."""
    lower = torch.linalg.cholesky(moments.double())
    factor: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True).float()
    return factor
