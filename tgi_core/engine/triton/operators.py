"""The operators of a decoder's step as Triton kernels. Kernel modules are imported at launch, so this module can be imported without
Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import DenseLayer, PagedLayer
from tgi_core.engine.decoder.checking import operators_disagreement
from tgi_core.engine.decoder.operators import Heads, LatentHeads
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.experts import Chosen, Experts, Routing
from tgi_core.engine.triton.probing import probe

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class TritonOperators:
    """The operators `triton`; tensors are contiguous, as a decoder's step makes them."""

    name = "triton"

    def refusal(self, dtype: torch.dtype) -> str:
        """Why it does not support a model of this dtype; empty if it does."""
        return probe() if dtype in DTYPES else f"the dtype is {dtype}"

    def self_check(self, table: DecoderTable, dtype: torch.dtype, device: torch.device) -> str:
        """Every kernel once, against torch's operators."""
        return operators_disagreement(self, table, dtype, device)

    def norm(self, stream: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """See `Operators.norm`."""
        from tgi_core.engine.triton.norm import launch_norm

        return launch_norm(stream, None, 1.0, weight, epsilon)

    def add_and_norm(self, stream: Tensor, branch: Tensor, scale: float, weight: Tensor, epsilon: float) -> Tensor:
        """See `Operators.add_and_norm`."""
        from tgi_core.engine.triton.norm import launch_norm

        return launch_norm(stream, branch, scale, weight, epsilon)

    def rope_and_cache(self, qkv: Tensor, positions: Tensor, slots: Tensor, heads: Heads, cache: PagedLayer) -> Tensor:
        """See `Operators.rope_and_cache`; the queries stay in `qkv`. Raises TypeError for a cache that is not dense."""
        from tgi_core.engine.triton.rotary import launch_rope_and_cache

        launch_rope_and_cache(qkv, positions, slots, heads, _dense_layer(cache))
        count, width = heads.sizes.heads, heads.sizes.head
        return qkv[:, : count * width].unflatten(-1, (count, width)).transpose(0, 1)

    def expand_latents(self, down: Tensor, latent: LatentHeads) -> tuple[Tensor, Tensor]:
        """See `Operators.expand_latents`: one kernel for few tokens and dense weights, else one for the norms and two GEMMs."""
        from tgi_core.engine.triton.latent import launch_expand

        return launch_expand(down, latent)

    def prepare_latents(self, latent: LatentHeads, router: Tensor | None) -> None:
        """See `Operators.prepare_latents`."""
        from tgi_core.engine.triton.latent import compile_latents

        compile_latents(latent, router)

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
        """See `Operators.latent_rope_and_cache`; the queries stay in `query`. Raises TypeError for a cache that is not dense."""
        from tgi_core.engine.triton.latent_rotary import launch_latent_rope_and_cache

        launch_latent_rope_and_cache(query, expanded, down, positions, slots, latent, _dense_layer(cache))
        # A view of one token would have another stride, for which attention would be compiled again.
        return query.as_strided((latent.heads, query.shape[0], latent.sizes.key), (latent.sizes.key, query.stride(0), 1))

    def wide_linear(self, input: Tensor, weight: Tensor) -> Tensor:
        """See `Operators.wide_linear`."""
        from tgi_core.engine.triton.latent import launch_wide_linear

        return launch_wide_linear(input, weight)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Operators.silu_mul`."""
        from tgi_core.engine.triton.activation import launch_silu_mul

        return launch_silu_mul(gate_up)

    def route(self, logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Chosen:
        """See `Operators.route`."""
        from tgi_core.engine.triton.routing import launch_route

        return launch_route(logits, routing, correction)

    def experts(self, hidden: Tensor, chosen: Chosen, experts: Experts) -> Tensor:
        """See `ExpertsKernel.experts`."""
        from tgi_core.engine.triton.grouped import launch_experts

        return launch_experts(hidden, chosen, experts)

    def prepare_experts(self, experts: Experts) -> None:
        """See `ExpertsKernel.prepare_experts`."""
        from tgi_core.engine.triton.grouped import compile_experts

        compile_experts(experts)


def _dense_layer(cache: PagedLayer) -> DenseLayer:
    if not isinstance(cache, DenseLayer):
        raise TypeError(f"a cache of {type(cache).__name__}, whose layout these kernels do not know")
    return cache
