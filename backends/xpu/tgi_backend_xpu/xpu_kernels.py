"""vLLM's kernels for Intel GPUs (package `vllm-xpu-kernels`, written against 0.1.16)."""

from __future__ import annotations

from torch import Tensor

from tgi_core.engine.accelerator.vendor_attention import Call, Limits, VendorAttention, window_of
from tgi_core.engine.attention.cache import LayerCache
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata


class XpuKernelsAttention(VendorAttention):
    """The provider `vllm-xpu-kernels`."""

    name = "vllm-xpu-kernels"
    module = "vllm_xpu_kernels.flash_attn_interface"
    calls = (
        Call(
            "flash_attn_varlen_func",
            (
                "q",
                "k",
                "v",
                "max_seqlen_q",
                "cu_seqlens_q",
                "max_seqlen_k",
                "seqused_k",
                "softmax_scale",
                "causal",
                "window_size",
                "block_table",
            ),
        ),
    )
    limits = Limits(widths=(64, 128, 256), softcaps=False)
    block_sizes: tuple[int, ...] = (64,)

    def unsupported(self) -> str:
        """It can be imported without its native part; a flag says so."""
        return (
            ""
            if getattr(self.library, "FA2_AVAILABLE", True)
            else "its native part does not load: is oneAPI's runtime installed?"
        )

    def rows(self, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        arrays = step.arrays()
        out: Tensor = self.library.flash_attn_varlen_func(
            q=query.contiguous(),
            k=cache.keys,
            v=cache.values,
            max_seqlen_q=arrays.max_query,
            cu_seqlens_q=arrays.cu_seqlens,
            max_seqlen_k=arrays.max_length,
            seqused_k=arrays.lengths,
            softmax_scale=parameters.scaling,
            causal=True,
            window_size=window_of(parameters),
            block_table=arrays.tables,
        )
        return out
