"""flash-attn 2 (package `flash-attn`, written against 2.8.3).

Its paged kernels need block sizes that are multiples of 256. Its variable-length call over blocks, if it splits along the keys, never
writes the rows after the first (its issues 1217 and 2812, torch's 194167); it splits if rows run one token each. So those go through the
call for caches, whose split is right, and rows of more tokens through the variable-length call, which then does not split.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.accelerator.vendor_attention import Call, Limits, VendorAttention, window_of
from tgi_core.engine.attention.cache import LayerCache
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata


class FlashAttention2(VendorAttention):
    """The provider `flash-attn 2`."""

    name = "flash-attn 2"
    module = "flash_attn"
    calls = (
        Call(
            "flash_attn_with_kvcache",
            ("q", "k_cache", "v_cache", "cache_seqlens", "block_table", "softmax_scale", "causal", "window_size", "softcap"),
        ),
        Call(
            "flash_attn_varlen_func",
            (
                "q",
                "k",
                "v",
                "cu_seqlens_q",
                "cu_seqlens_k",
                "max_seqlen_q",
                "max_seqlen_k",
                "softmax_scale",
                "causal",
                "window_size",
                "softcap",
                "block_table",
            ),
        ),
    )
    limits = Limits()
    block_sizes: tuple[int, ...] = (256,)

    def rows(self, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        arrays = step.arrays()
        count = arrays.decode_rows
        options: dict[str, Any] = {
            "softmax_scale": parameters.scaling,
            "causal": True,
            "window_size": window_of(parameters),
            "softcap": parameters.softcap or 0.0,
        }
        parts = []
        if count:
            decoded = self.library.flash_attn_with_kvcache(
                q=query[:count].unsqueeze(1),
                k_cache=cache.keys,
                v_cache=cache.values,
                cache_seqlens=arrays.lengths[:count],
                block_table=arrays.tables[:count],
                **options,
            )
            parts.append(decoded.squeeze(1))
        if count < len(query):
            keys = _ends(step, arrays.lengths[count:])
            prefilled = self.library.flash_attn_varlen_func(
                q=query[count:],
                k=cache.keys,
                v=cache.values,
                cu_seqlens_q=arrays.cu_seqlens[count:] - arrays.cu_seqlens[count],
                cu_seqlens_k=keys,
                max_seqlen_q=arrays.max_query,
                max_seqlen_k=arrays.max_length,
                block_table=arrays.tables[count:],
                **options,
            )
            parts.append(prefilled)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _ends(step: StepMetadata, lengths: Tensor) -> Tensor:
    """[rows + 1]: cumulative lengths of the rows' keys; computed once per step."""
    found = step.masks.get("flash-attn 2 keys")
    if found is None:
        found = step.masks["flash-attn 2 keys"] = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return found
