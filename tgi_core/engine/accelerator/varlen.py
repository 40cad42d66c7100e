"""torch's own ragged attention over a paged cache (`torch.nn.attention.varlen`, paged from torch 2.12 on)."""

from __future__ import annotations

from torch import Tensor

from tgi_core.engine.accelerator.vendor_attention import Call, Limits, VendorAttention
from tgi_core.engine.attention.cache import LayerCache
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata


class VarlenAttention(VendorAttention):
    """The provider `torch varlen`.

    It is based on flash-attn 2, with blocks of 256 and a split along the keys that skips rows (torch issue 194167): one split avoids
    that.
    """

    name = "torch varlen"
    module = "torch.nn.attention.varlen"
    calls = (Call("varlen_attn", ("scale", "window_size", "enable_gqa", "seqused_k", "block_table", "num_splits")),)
    limits = Limits(softcaps=False)
    block_sizes: tuple[int, ...] = (256,)

    def rows(self, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        arrays = step.arrays()
        out: Tensor = self.library.varlen_attn(
            query,
            cache.keys,
            cache.values,
            arrays.cu_seqlens,
            None,
            arrays.max_query,
            arrays.max_length,
            scale=parameters.scaling,
            window_size=(-1 if parameters.window is None else parameters.window - 1, 0),
            enable_gqa=query.shape[1] != cache.keys.shape[2],
            seqused_k=arrays.lengths,
            block_table=arrays.tables,
            num_splits=1,
        )
        return out
