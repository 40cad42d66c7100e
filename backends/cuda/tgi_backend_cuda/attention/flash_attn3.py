"""flash-attn 3 (module `flash_attn_interface`, built from flash-attention's folder `hopper`): one call for every kind of step."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.engine.accelerator.vendor_attention import Call, Limits, VendorAttention, window_of
from tgi_core.engine.attention.cache import LayerCache
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata


class FlashAttention3(VendorAttention):
    """The provider `flash-attn 3`."""

    name = "flash-attn 3"
    module = "flash_attn_interface"
    calls = (
        Call(
            "flash_attn_with_kvcache",
            (
                "q",
                "k_cache",
                "v_cache",
                "cache_seqlens",
                "page_table",
                "cu_seqlens_q",
                "max_seqlen_q",
                "softmax_scale",
                "causal",
                "window_size",
                "softcap",
            ),
        ),
    )
    limits = Limits()

    def unsupported(self) -> str:
        """Why it cannot run here: it supports only Hopper."""
        major, minor = torch.cuda.get_device_capability(self._device)
        return "" if major == 9 else f"compute capability {major}.{minor}, and it has code for 9.0"

    def rows(self, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        arrays = step.arrays()
        out: Tensor = self.library.flash_attn_with_kvcache(
            q=query,
            k_cache=cache.keys,
            v_cache=cache.values,
            cache_seqlens=arrays.lengths,
            page_table=arrays.tables,
            cu_seqlens_q=arrays.cu_seqlens,
            max_seqlen_q=arrays.max_query,
            softmax_scale=parameters.scaling,
            causal=True,
            window_size=window_of(parameters),
            softcap=parameters.softcap or 0.0,
        )
        return out
