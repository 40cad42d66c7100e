"""What any implementation of `Operators` must do for latent attention, against textbook formulas in double precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.operator_checks import BLOCK, close, noise, normed, turned_by_hand
from tgi_core.engine.attention.cache import CacheScales, LayerCache, LayerShape
from tgi_core.engine.decoder.latent import LatentSizes
from tgi_core.engine.decoder.operators import LatentHeads, Operators
from tgi_core.engine.quantization.linear import Linear
from tgi_core.engine.quantization.torch_linear import TorchLinear

SIZES = (
    (LatentSizes(48, 40, 16, 8, 24, True), 4),
    (LatentSizes(24, 72, 20, 6, 16, False), 3),
    (LatentSizes(0, 32, 16, 16, 16, True), 5),
)
"""With the number of heads."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A linear layer whose weight no other kernel can read."""

    weight: Tensor
    dense: Tensor | None = None
    num_bytes: int = 0

    def __call__(self, input: Tensor) -> Tensor:
        """The product."""
        return F.linear(input, self.weight)


def latent_heads(sizes: LatentSizes, heads: int, dtype: torch.dtype, packed: bool = False) -> LatentHeads:
    """Random norms and projections."""

    def linear(out: int, rank: int, seed: int) -> Linear:
        weight = (noise(out, rank, seed=seed) * rank**-0.5).to(dtype)
        return Packed(weight) if packed else TorchLinear(weight, None)

    def norm(rank: int, seed: int) -> Tensor:
        return (1 + noise(rank, seed=seed) / 4).to(dtype)

    angles = _angles(sizes)
    return LatentHeads(
        sizes,
        heads,
        torch.cat((angles.cos(), angles.sin()), -1).float(),
        norm(sizes.query_rank, 1) if sizes.query_rank else None,
        linear(heads * sizes.key, sizes.query_rank, 2) if sizes.query_rank else None,
        norm(sizes.kv_rank, 3),
        linear(heads * (sizes.nope + sizes.value), sizes.kv_rank, 4),
        1e-6,
    )


def _angles(sizes: LatentSizes) -> Tensor:
    return torch.arange(10).double().unsqueeze(1) * noise(sizes.rope // 2, seed=5).double()


def check_expand(
    operators: Operators, dtype: torch.dtype, sizes: LatentSizes, heads: int, tokens: int, packed: bool = False
) -> None:
    """Latents are normalized, rounded to their dtype, and projected; what is no latent is left out."""
    latent = latent_heads(sizes, heads, dtype, packed)
    down = noise(tokens, latent.ahead + sizes.kv_rank + sizes.rope, seed=6).to(dtype)
    kept = down.clone()
    query, expanded = operators.expand_latents(down, latent)
    found = [(expanded, latent.kv, latent.kv_norm, down[:, latent.ahead : latent.ahead + sizes.kv_rank])]
    if latent.query is None or latent.query_norm is None:
        assert torch.equal(query, kept[:, : latent.ahead])
    else:
        found.append((query, latent.query, latent.query_norm, down[:, : latent.ahead]))
    for result, linear, norm, rows in found:
        weight = linear.weight if isinstance(linear, Packed) else linear.dense
        assert weight is not None and result.dtype is dtype and torch.equal(down, kept)
        assert close(result, normed(rows, norm).to(dtype).double() @ weight.double().t(), 4)


def check_latent_store(operators: Operators, dtype: torch.dtype, sizes: LatentSizes, heads: int) -> None:
    """Queries and the key of all heads are rotated, keys and values lie at their slots, and slot −1 is written nowhere."""
    latent, angles = latent_heads(sizes, heads, dtype), _angles(sizes)
    positions, slots = torch.tensor([3, 0, 9, 4, 5, 0]), torch.tensor([17, 30, 16, 40, -1, -1])
    down = noise(6, latent.ahead + sizes.kv_rank + sizes.rope, seed=6).to(dtype)
    query = down[:, : latent.ahead] if latent.query is None else noise(6, heads * sizes.key, seed=7).to(dtype)
    expanded = noise(6, heads * (sizes.nope + sizes.value), seed=8).to(dtype)
    cache = LayerCache(LayerShape(heads, sizes.key, sizes.value, None, CacheScales()), 3, BLOCK, dtype, torch.device("cpu"))
    wide = query.double().clone().unflatten(-1, (heads, sizes.key))
    wide[..., sizes.nope :] = _turned(wide[..., sizes.nope :], angles[positions], sizes.interleaved)
    shared = _turned(down[:, -sizes.rope :].double().unsqueeze(1), angles[positions], sizes.interleaved)
    key, value = expanded.double().unflatten(-1, (heads, -1)).split([sizes.nope, sizes.value], -1)
    found = operators.latent_rope_and_cache(query, expanded, down, positions, slots, latent, cache)
    assert found.shape == (heads, 6, sizes.key) and close(found.transpose(0, 1), wide, 2)
    written = slots[:4]
    assert close(cache.flat_keys[written], torch.cat((key, shared.expand(-1, heads, -1)), -1)[:4], 2)
    assert torch.equal(cache.flat_values[written].double(), value[:4])
    others = torch.ones(4 * BLOCK, dtype=torch.bool).index_fill_(0, written, False).nonzero().flatten()  # the last is for waste
    assert not cache.flat_keys[others].any() and not cache.flat_values[others].any()


def _turned(part: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """Pairs rotated, each of whose elements stays at its place."""
    if not interleaved:
        return turned_by_hand(part.clone(), angles)
    apart = turned_by_hand(part.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2), angles)
    return apart.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def check_wide_linear(operators: Operators, dtype: torch.dtype, tokens: int) -> None:
    """A product in float32, whatever the inputs are."""
    input, weight = noise(tokens, 80).to(dtype), noise(37, 80, seed=1)
    found = operators.wide_linear(input, weight)
    assert found.dtype is torch.float32 and torch.allclose(found.double(), input.double() @ weight.double().t(), atol=1e-4)
