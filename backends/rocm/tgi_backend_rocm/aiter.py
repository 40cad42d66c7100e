"""AMD's AITER (package `amd-aiter`, written against 0.1.20; the package `aiter` of the public index is something else)."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.engine.accelerator.vendor_attention import Call, Limits, VendorAttention, window_of
from tgi_core.engine.attention.cache import LayerCache
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata

_ARCHITECTURES = ("gfx942", "gfx950")
"""The architectures that its wheels have code for."""


class AiterAttention(VendorAttention):
    """The provider `aiter`: its unified kernel over blocks, for every kind of step."""

    name = "aiter"
    module = "aiter.ops.triton.attention.unified_attention"
    calls = (
        Call(
            "unified_attention",
            (
                "q",
                "k",
                "v",
                "out",
                "cu_seqlens_q",
                "max_seqlen_q",
                "seqused_k",
                "max_seqlen_k",
                "softmax_scale",
                "causal",
                "window_size",
                "block_table",
                "softcap",
                "q_descale",
                "k_descale",
                "v_descale",
            ),
        ),
    )
    limits = Limits(widths=(64, 128, 256))

    def __init__(self, device: torch.device, architecture: str) -> None:
        super().__init__(device)
        self._architecture = architecture

    def unsupported(self) -> str:
        """Why it has no code for this device."""
        return (
            ""
            if self._architecture in _ARCHITECTURES
            else f"{self._architecture}, and it has code for {', '.join(_ARCHITECTURES)}"
        )

    def rows(self, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        arrays, query = step.arrays(), query.contiguous()
        out = torch.empty_like(query)
        self.library.unified_attention(
            q=query,
            k=cache.keys,
            v=cache.values,
            out=out,
            cu_seqlens_q=arrays.cu_seqlens,
            max_seqlen_q=arrays.max_query,
            seqused_k=arrays.lengths,
            max_seqlen_k=arrays.max_length,
            softmax_scale=parameters.scaling,
            causal=True,
            window_size=window_of(parameters),
            block_table=arrays.tables,
            softcap=parameters.softcap or 0.0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
        )
        return out
