"""The operators of a decoder's step besides GEMMs and attention.

None of them synchronizes with the device, and the shapes of results follow from the shapes of arguments, so that a step can be captured
as a graph. Sums are computed in float32 for every dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.decoder.latent import LatentSizes
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.experts import Chosen, ExpertsKernel, Routing
from tgi_core.engine.quantization.linear import Linear


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """The sizes of a row of queries, keys and values: `heads`, then twice `kv_heads`, each of `head` elements."""

    heads: int
    kv_heads: int
    head: int


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norm of single heads: `query` and `key` are weights [head]."""

    query: Tensor
    key: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class Heads:
    """The processing of heads before attention: a norm, then RoPE, if it has them.

    `cos_sin` [positions, size], float32, holds the cosines of size / 2 angles for each position, then their sines. The first `size`
    elements of a head are rotated, element i with i + size / 2.
    """

    sizes: HeadSizes
    cos_sin: Tensor | None
    norms: HeadNorms | None


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """Latent attention of `heads` heads: what follows from a token's latents.

    `cos_sin` [positions, rope], as in `Heads`. Norms are those of the latents; `query` projects the normed latent of queries to
    [heads · key], and `kv` that of keys and values to [heads · (nope + value)]. Without a latent of queries, `query` is None.
    """

    sizes: LatentSizes
    heads: int
    cos_sin: Tensor
    query_norm: Tensor | None
    query: Linear | None
    kv_norm: Tensor
    kv: Linear
    epsilon: float

    @property
    def ahead(self) -> int:
        """Elements before the latent of keys and values in a row of the first projection: the latent of queries, or the queries."""
        return self.sizes.query_rank or self.heads * self.sizes.key


class Operators(ExpertsKernel, Protocol):
    """One implementation of the operators."""

    def refusal(self, dtype: torch.dtype) -> str:
        """Why it does not support a model of this dtype; empty if it does."""

    def self_check(self, table: DecoderTable, dtype: torch.dtype, device: torch.device) -> str:
        """What is wrong with the results for a few tokens of the table's sizes on the device; empty if they are right. May raise
        anything."""

    def norm(self, stream: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """RMS norm of stream [tokens, hidden] → the same shape in the weight's dtype."""

    def add_and_norm(self, stream: Tensor, branch: Tensor, scale: float, weight: Tensor, epsilon: float) -> Tensor:
        """stream += scale · branch in place, both [tokens, hidden]; then its norm, as `norm` gives it. A branch [tokens, parts, hidden] is
        summed."""

    def rope_and_cache(self, qkv: Tensor, positions: Tensor, slots: Tensor, heads: Heads, cache: PagedLayer) -> Tensor:
        """Normalize and rotate queries and keys, and write keys and values to the cache at `slots` [tokens]; −1 is not written.

        May change qkv [tokens, (heads + 2 · kv_heads) · head]; positions [tokens]. Returns the queries [heads, tokens, head].
        """

    def expand_latents(self, down: Tensor, latent: LatentHeads) -> tuple[Tensor, Tensor]:
        """From the first projection [tokens, ahead + kv_rank + rope]: queries [tokens, heads · key], which may be a part of it, and keys
        and values [tokens, heads · (nope + value)], a contiguous tensor."""

    def prepare_latents(self, latent: LatentHeads, router: Tensor | None) -> None:
        """Compile what any number of tokens needs for `expand_latents`, and for `wide_linear` with the router, if there is one."""

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
        """Rotate queries, and the key that all heads share, the last elements of `down`, and write keys and values as `rope_and_cache`
        does. The first two are what `expand_latents` returned, and may be changed. Returns the queries [heads, tokens, key]."""

    def wide_linear(self, input: Tensor, weight: Tensor) -> Tensor:
        """input [tokens, in] · weightᵀ, weight [out, in] float32 → float32 [tokens, out]."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [tokens, 2 · inner] → SiLU of the first half times the second [tokens, inner]."""

    def route(self, logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Chosen:
        """The experts of tokens, from the router's logits [tokens, routing.logits]; `correction` as in `experts.route`."""
