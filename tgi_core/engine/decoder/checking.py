"""Self-check of a decoder's operators on their device: a few tokens of the table's sizes, against plain torch in float32 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import BLOCK_SIZES, LayerCache, LayerShape
from tgi_core.engine.attention.checking import TOLERANCES
from tgi_core.engine.decoder.operators import HeadNorms, Heads, HeadSizes, Operators
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.decoder.torch_operators import TorchOperators

_TOKENS = 5
_SCALE = 0.3
_SLOTS = (BLOCK_SIZES[0] + 1, BLOCK_SIZES[0], 2 * BLOCK_SIZES[0] + 3, 3 * BLOCK_SIZES[0] - 1, -1)
"""Slots of keys and values: one per token, out of order, one of them not written."""

_CPU = torch.device("cpu")


def operators_disagreement(operators: Operators, table: DecoderTable, dtype: torch.dtype, device: torch.device) -> str:
    """How far the operators' results are from the reference, if too far; empty if all agree."""
    found = _results(operators, table, dtype, dtype, device)
    for (name, result), (_, expected) in zip(found, _results(TorchOperators(), table, dtype, torch.float32, _CPU), strict=True):
        difference = float((result.float().cpu() - expected).norm() / expected.norm())
        if not difference <= TOLERANCES[dtype]:
            return f"{name} differs from the reference by {difference:.2g} of its norm"
    return ""


def _results(
    operators: Operators, table: DecoderTable, rounded: torch.dtype, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Each operator's results by name, over the same numbers, `rounded` before they are converted to `dtype`."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(rounded).to(device, dtype)

    stream, branch, weight = drawn(_TOKENS, table.hidden), drawn(_TOKENS, table.hidden), drawn(table.hidden)
    yield "norm", operators.norm(stream, weight, table.epsilon)
    yield "add_and_norm", operators.add_and_norm(stream, branch, _SCALE, weight, table.epsilon)
    yield "the sum of add_and_norm", stream
    yield "silu_mul", operators.silu_mul(drawn(_TOKENS, 2 * table.intermediate))
    sizes = HeadSizes(table.heads, table.kv_heads, table.head_size)
    norms = HeadNorms(drawn(sizes.head), drawn(sizes.head), table.epsilon) if table.query_norm else None
    angles = torch.outer(torch.arange(_TOKENS), torch.tensor(table.rotary.frequencies))
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1).to(device) if any(layer.rotary for layer in table.layers) else None
    cache = LayerCache(LayerShape(sizes.kv_heads, sizes.head, sizes.head), 3, BLOCK_SIZES[0], dtype, device)
    positions, slots = torch.arange(_TOKENS, device=device).flip(0), torch.tensor(_SLOTS, device=device)
    qkv = drawn(_TOKENS, (sizes.heads + 2 * sizes.kv_heads) * sizes.head)
    yield "rope_and_cache", operators.rope_and_cache(qkv, positions, slots, Heads(sizes, cos_sin, norms), cache)
    yield "the keys that rope_and_cache writes", cache.keys[:4]
    yield "the values that rope_and_cache writes", cache.values[:4]
