"""The operators of a decoder's step in plain torch: run on any device, and are the reference for faster ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.decoder.operators import Heads
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
        # Tokens that are not to be written write zeros to the null block, which holds nothing else.
        left_out = (slots < 0).view(-1, 1, 1)
        key, value = (part.masked_fill(left_out, 0).transpose(0, 1) for part in (key, value))
        cache.write(slots.clamp_min(0), key, value)
        return query.transpose(0, 1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Operators.silu_mul`."""
        gate, up = gate_up.float().chunk(2, -1)
        return (F.silu(gate) * up).to(gate_up.dtype)

    def route(self, logits: Tensor, routing: Routing) -> Chosen:
        """See `Operators.route`."""
        return route(logits, routing)

    def experts(self, hidden: Tensor, chosen: Chosen, experts: Experts) -> Tensor:
        """See `ExpertsKernel.experts`."""
        return run_experts(hidden, chosen, experts)

    def prepare_experts(self, experts: Experts) -> None:
        """Nothing is compiled."""


def _normed(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """heads [tokens, heads, head], with cosines and sines [tokens, 1, pairs] of the rotated elements."""
    half = cosine.shape[-1]
    first, second, rest = heads.split([half, half, heads.shape[-1] - 2 * half], -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), -1)
