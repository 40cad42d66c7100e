"""The operators of a decoder's step in plain torch: run on any device, and are the reference for faster ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.decoder.operators import Heads, LatentHeads
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.experts import Chosen, Experts, Routing, route, run_experts


class TorchOperators:
    """The operators `torch`."""

    name = "torch"

    def refusal(self, dtype: torch.dtype) -> str:
        """It supports every dtype."""
        return ""

    def self_check(self, table: DecoderTable, dtype: torch.dtype, device: torch.device) -> str:
        """It is the reference."""
        return ""

    def norm(self, stream: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """See `Operators.norm`."""
        return _normed(stream.float(), weight, epsilon).to(weight.dtype)

    def add_and_norm(self, stream: Tensor, branch: Tensor, scale: float, weight: Tensor, epsilon: float) -> Tensor:
        """See `Operators.add_and_norm`."""
        branch = branch if branch.ndim == stream.ndim else branch.sum(1, dtype=torch.float32).to(stream.dtype)
        return self.norm(stream.add_(branch, alpha=scale), weight, epsilon)

    def rope_and_cache(self, qkv: Tensor, positions: Tensor, slots: Tensor, heads: Heads, cache: PagedLayer) -> Tensor:
        """See `Operators.rope_and_cache`."""
        sizes, norms = heads.sizes, heads.norms
        flat = qkv.unflatten(-1, (-1, sizes.head))
        query, key, value = flat.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], 1)
        wide_query, wide_key = query.float(), key.float()
        if norms is not None:
            wide_query, wide_key = _normed(wide_query, norms.query, norms.epsilon), _normed(wide_key, norms.key, norms.epsilon)
        if heads.cos_sin is not None:
            cosine, sine = heads.cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, -1)
            wide_query, wide_key = _rotated(wide_query, cosine, sine), _rotated(wide_key, cosine, sine)
        query, key = wide_query.to(qkv.dtype), wide_key.to(qkv.dtype)
        write_heads(cache, slots, key, value)
        return query.transpose(0, 1)

    def expand_latents(self, down: Tensor, latent: LatentHeads) -> tuple[Tensor, Tensor]:
        """See `Operators.expand_latents`."""
        ahead, latent_kv, _ = down.split([latent.ahead, latent.sizes.kv_rank, latent.sizes.rope], -1)
        query = ahead
        if latent.query is not None and latent.query_norm is not None:
            query = latent.query(self.norm(ahead, latent.query_norm, latent.epsilon))
        return query, latent.kv(self.norm(latent_kv, latent.kv_norm, latent.epsilon))

    def prepare_latents(self, latent: LatentHeads, router: Tensor | None) -> None:
        """Nothing is compiled."""

    def latent_rope_and_cache(
        self,
        query: Tensor,
        expanded: Tensor,
        down: Tensor,
        positions: Tensor,
        slots: Tensor,
        latent: LatentHeads,
        cache: PagedLayer,
    ) -> Tensor:
        """See `Operators.latent_rope_and_cache`."""
        sizes = latent.sizes
        cosine, sine = latent.cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, -1)
        query, rotated = query.unflatten(-1, (latent.heads, sizes.key)).split([sizes.nope, sizes.rope], -1)
        key, value = expanded.unflatten(-1, (latent.heads, -1)).split([sizes.nope, sizes.value], -1)
        query_rope, key_rope = (
            _turned(part.float(), cosine, sine, sizes.interleaved).to(down.dtype)
            for part in (rotated, down[:, -sizes.rope :].unsqueeze(1))
        )
        key = torch.cat((key, key_rope.expand(-1, latent.heads, -1)), -1)
        write_heads(cache, slots, key, value)
        return torch.cat((query, query_rope), -1).transpose(0, 1)

    def wide_linear(self, input: Tensor, weight: Tensor) -> Tensor:
        """See `Operators.wide_linear`."""
        return F.linear(input.float(), weight)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Operators.silu_mul`."""
        gate, up = gate_up.float().chunk(2, -1)
        return (F.silu(gate) * up).to(gate_up.dtype)

    def route(self, logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Chosen:
        """See `Operators.route`."""
        return route(logits, routing, correction)

    def experts(self, hidden: Tensor, chosen: Chosen, experts: Experts) -> Tensor:
        """See `ExpertsKernel.experts`."""
        return run_experts(hidden, chosen, experts)

    def prepare_experts(self, experts: Experts) -> None:
        """Nothing is compiled."""


def write_heads(cache: PagedLayer, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Write key and value [tokens, heads, width] to `slots` [tokens]; −1 is not written."""
    # Tokens that are not to be written write zeros to the null block, which holds nothing else.
    left_out = (slots < 0).view(-1, 1, 1)
    key, value = (part.masked_fill(left_out, 0).transpose(0, 1) for part in (key, value))
    cache.write(slots.clamp_min(0), key, value)


def _turned(heads: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool) -> Tensor:
    """See `_rotated`; with `interleaved`, adjacent elements are rotated with each other."""
    if not interleaved:
        return _rotated(heads, cosine, sine)
    first, second = heads.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((first * cosine - second * sine, second * cosine + first * sine), -1).flatten(-2)


def _normed(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """heads [tokens, heads, head], with cosines and sines [tokens, 1, pairs] of the rotated elements."""
    half = cosine.shape[-1]
    first, second, rest = heads.split([half, half, heads.shape[-1] - 2 * half], -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), -1)
