"""The operators of a decoder's step as Triton kernels. Kernel modules are imported at launch, so this module can be imported without
Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import DenseLayer, PagedLayer
from tgi_core.engine.decoder.checking import operators_disagreement
from tgi_core.engine.decoder.operators import Heads
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

        if not isinstance(cache, DenseLayer):
            raise TypeError(f"a cache of {type(cache).__name__}, whose layout these kernels do not know")
        launch_rope_and_cache(qkv, positions, slots, heads, cache)
        count, width = heads.sizes.heads, heads.sizes.head
        return qkv[:, : count * width].unflatten(-1, (count, width)).transpose(0, 1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Operators.silu_mul`."""
        from tgi_core.engine.triton.activation import launch_silu_mul

        return launch_silu_mul(gate_up)

    def route(self, logits: Tensor, routing: Routing) -> Chosen:
        """See `Operators.route`."""
        from tgi_core.engine.triton.routing import launch_route

        return launch_route(logits, routing)

    def experts(self, hidden: Tensor, chosen: Chosen, experts: Experts) -> Tensor:
        """See `ExpertsKernel.experts`."""
        from tgi_core.engine.triton.grouped import launch_experts

        return launch_experts(hidden, chosen, experts)

    def prepare_experts(self, experts: Experts) -> None:
        """See `ExpertsKernel.prepare_experts`."""
        from tgi_core.engine.triton.grouped import compile_experts

        compile_experts(experts)
