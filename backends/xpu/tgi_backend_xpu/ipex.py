"""Paged attention of Intel's extension for PyTorch, if its last release is installed (2.8, which has reached its end of life)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.accelerator.vendor_attention import Call, Limits, VendorAttention, window_of
from tgi_core.engine.attention.cache import LayerCache
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata


class IpexAttention(VendorAttention):
    """The provider `ipex`."""

    name = "ipex"
    module = "intel_extension_for_pytorch.llm.modules"
    calls = (Call("PagedAttention.flash_attn_varlen_func", ("alibi_slopes", "window_size_left", "window_size_right", "softcap")),)
    limits = Limits(widths=(64, 80, 96, 112, 128, 256))
    block_sizes: tuple[int, ...] = (64,)

    def rows(self, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        arrays, (left, right) = step.arrays(), window_of(parameters)
        query = query.contiguous()
        out = torch.empty_like(query)
        self.library.PagedAttention.flash_attn_varlen_func(
            out,
            query,
            cache.keys,
            cache.values,
            arrays.cu_seqlens,
            F.pad(arrays.lengths.cumsum(0, dtype=torch.int32), (1, 0)),
            arrays.max_query,
            arrays.max_length,
            parameters.scaling,
            True,
            arrays.tables,
            alibi_slopes=None,
            window_size_left=left,
            window_size_right=right,
            softcap=-1.0 if parameters.softcap is None else parameters.softcap,
        )
        return out
