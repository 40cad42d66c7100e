"""Self-check of a decoder's operators on their device: a few tokens of the table's sizes, against plain torch in float32 on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import BLOCK_SIZES, LayerCache, LayerShape
from tgi_core.engine.attention.checking import TOLERANCES
from tgi_core.engine.decoder.experts import ExpertTable
from tgi_core.engine.decoder.latent import LATENT_EPSILON, LatentSizes
from tgi_core.engine.decoder.operators import HeadNorms, Heads, HeadSizes, LatentHeads, Operators
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.experts import Experts
from tgi_core.engine.quantization.torch_linear import TorchLinear

_TOKENS = 5
_SCALE = 0.3
_SLOTS = (BLOCK_SIZES[0] + 1, BLOCK_SIZES[0], 2 * BLOCK_SIZES[0] + 3, 3 * BLOCK_SIZES[0] - 1, -1)
"""Slots of keys and values: one per token, out of order, one of them not written."""

_INNER = 64
"""Columns of the experts that are run."""

_HEADS = 16
"""The most heads of latent attention that are run."""

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
    if table.experts is None or any(layer.dense for layer in table.layers):
        yield "silu_mul", operators.silu_mul(drawn(_TOKENS, 2 * table.intermediate))
    if table.experts is not None:
        yield from _expert_results(operators, table, table.experts, drawn)
    if table.latent is not None:
        yield from _latent_results(operators, table, table.latent, drawn)
        return
    sizes = HeadSizes(table.heads, table.kv_heads, table.head_size)
    norms = HeadNorms(drawn(sizes.head), drawn(sizes.head), table.epsilon) if table.query_norm else None
    cos_sin = _cos_sin(table, device) if any(layer.rotary for layer in table.layers) else None
    cache = LayerCache(LayerShape(sizes.kv_heads, sizes.head, sizes.head), 3, BLOCK_SIZES[0], dtype, device)
    positions, slots = torch.arange(_TOKENS, device=device).flip(0), torch.tensor(_SLOTS, device=device)
    qkv = drawn(_TOKENS, (sizes.heads + 2 * sizes.kv_heads) * sizes.head)
    yield "rope_and_cache", operators.rope_and_cache(qkv, positions, slots, Heads(sizes, cos_sin, norms), cache)
    yield "the keys that rope_and_cache writes", cache.keys[:4]
    yield "the values that rope_and_cache writes", cache.values[:4]


def _latent_results(
    operators: Operators, table: DecoderTable, sizes: LatentSizes, drawn: Callable[..., Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The same of latent attention, with a few of its heads."""
    heads, ahead = min(table.heads, _HEADS), None
    device, dtype = drawn(1).device, drawn(1).dtype

    def linear(out: int, rank: int) -> TorchLinear:
        return TorchLinear(drawn(out, rank) * rank**-0.5, None)

    if sizes.query_rank:
        ahead = drawn(sizes.query_rank), linear(heads * sizes.key, sizes.query_rank)
    cos_sin = _cos_sin(table, device)
    query_norm, query = ahead or (None, None)
    kv = drawn(sizes.kv_rank), linear(heads * (sizes.nope + sizes.value), sizes.kv_rank)
    latent = LatentHeads(sizes, heads, cos_sin, query_norm, query, *kv, LATENT_EPSILON)
    positions, slots = torch.arange(_TOKENS, device=device).flip(0), torch.tensor(_SLOTS, device=device)
    down = drawn(_TOKENS, latent.ahead + sizes.kv_rank + sizes.rope)
    queries, expanded = operators.expand_latents(down, latent)
    yield "the queries of expand_latents", queries.clone()
    yield "the keys and values of expand_latents", expanded
    cache = LayerCache(LayerShape(heads, sizes.key, sizes.value), 3, BLOCK_SIZES[0], dtype, device)
    yield (
        "latent_rope_and_cache",
        operators.latent_rope_and_cache(queries, expanded, down, positions, slots, latent, cache),
    )
    yield "the keys that latent_rope_and_cache writes", cache.keys[:4]
    yield "the values that latent_rope_and_cache writes", cache.values[:4]


def _cos_sin(table: DecoderTable, device: torch.device) -> Tensor:
    angles = torch.outer(torch.arange(_TOKENS), torch.tensor(table.rotary.frequencies))
    return torch.cat((angles.cos(), angles.sin()), -1).to(device)


def _expert_results(
    operators: Operators, table: DecoderTable, experts: ExpertTable, drawn: Callable[..., Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The same of experts, with columns few enough for a check at every start."""
    routing, hidden, inner = experts.routing, table.hidden, min(experts.inner, _INNER)
    # Apart, so that rounding does not choose other experts.
    logits = drawn(_TOKENS, routing.logits)
    logits = logits.argsort(-1).argsort(-1).to(logits.dtype) / 4
    if experts.wide_router:
        weight = drawn(routing.experts, hidden).float()
        yield "wide_linear", operators.wide_linear(drawn(_TOKENS, hidden), weight)
        logits = logits.float()
    correction = drawn(routing.experts).float() / 64 if experts.names.correction else None
    chosen = operators.route(logits, routing, correction)
    yield "the experts that route chooses", chosen.ids.float()
    yield "their weights", chosen.weights
    count = routing.experts + routing.shared
    some = Experts(
        drawn(count, 2 * inner, hidden) * hidden**-0.5,
        drawn(count, hidden, inner),
        drawn(count, 2 * inner) if experts.biases else None,
        drawn(count, hidden) if experts.biases else None,
        experts.activation,
    )
    made = operators.experts(drawn(_TOKENS, hidden), chosen, some)
    yield "experts", made.sum(1, dtype=torch.float32)
    stream = drawn(_TOKENS, hidden)
    yield "add_and_norm of experts", operators.add_and_norm(stream, made, _SCALE, drawn(hidden), table.epsilon)
