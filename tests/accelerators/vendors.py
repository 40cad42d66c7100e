"""Vendors' attention libraries that aren't there: modules that have the functions of the real ones and no others.

A function computes what the real one documents, from just the arguments that it is given, one row at a time. A name that
is not in the list below is an AttributeError, so a misspelt one fails a test; so does an argument that the real function lacks.

    flash_attn                  flash-attention v2.8.3, flash_attn/flash_attn_interface.py, read 2026-11-22
    flash_attn_interface        flash-attention, hopper/flash_attn_interface.py on main, read 2026-11-22
    flashinfer                  FlashInfer 0.7, docs.flashinfer.ai/api/attention, read 2026-11-22
    aiter…unified_attention     AITER 0.1.20, aiter/ops/triton/attention/unified_attention.py, as of 2026-11
    vllm_xpu_kernels            vllm-xpu-kernels 0.1.16, vllm_xpu_kernels/flash_attn_interface.py, as of 2026-11
    torch.nn.attention.varlen   torch 2.13, installed here: its signature is the real one's
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn as real_varlen_attn


class Strict(ModuleType):
    """A module with these names and no others."""

    def __init__(self, name: str, **names: Any) -> None:
        super().__init__(name)
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"{self.__name__} has no {name}: it is not in the list of what the real one has")


def paged(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    starts: Tensor,
    lengths: Tensor,
    tables: Tensor,
    scale: float,
    window: int = -1,
    softcap: float = 0.0,
) -> Tensor:
    """Attention [tokens, heads, width] by the definition: row i has the tokens starts[i]…starts[i + 1] − 1, the last of its lengths[i]
    positions, which lie in the blocks tables[i]; `window` positions before a query are seen, all if negative."""
    out = torch.empty_like(query)
    group = query.shape[1] // keys.shape[2]
    for row, length in enumerate(lengths.tolist()):
        begin, end = int(starts[row]), int(starts[row + 1])
        own_keys, own_values = (cache[tables[row].long()].flatten(0, 1)[:length].float() for cache in (keys, values))
        at = torch.arange(length - (end - begin), length).unsqueeze(1)
        other = torch.arange(length)
        seen = (other <= at) & ((other >= at - window) if window >= 0 else torch.ones((), dtype=torch.bool))
        own_keys, own_values = (cache.repeat_interleave(group, 1).transpose(0, 1) for cache in (own_keys, own_values))
        scores = query[begin:end].float().transpose(0, 1) @ own_keys.transpose(1, 2) * scale
        scores = scores if softcap == 0 else softcap * torch.tanh(scores / softcap)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        out[begin:end] = (weights @ own_values).transpose(0, 1).to(out.dtype)
    return out


def _check_tables(*tables: Tensor) -> None:
    for table in tables:
        if table.dtype is not torch.int32 or not table.is_contiguous():
            raise RuntimeError("expected a contiguous int32 tensor")


def flash_attn2(page_multiple: int = 256) -> Strict:
    """flash-attn 2, with its rule for the size of blocks, and its fault: a decode step by the call for ragged rows is wrong."""

    def flash_attn_with_kvcache(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        rotary_cos: Tensor | None = None,
        rotary_sin: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
        cache_batch_idx: Tensor | None = None,
        cache_leftpad: Tensor | None = None,
        block_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: Tensor | None = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> Tensor:
        assert causal and cache_seqlens is not None and block_table is not None and softmax_scale is not None
        _check_pages(k_cache, page_multiple)
        _check_tables(cache_seqlens, block_table)
        starts = torch.arange(q.shape[0] + 1, dtype=torch.int32) * q.shape[1]
        out = paged(q.flatten(0, 1), k_cache, v_cache, starts, cache_seqlens, block_table, softmax_scale, window_size[0], softcap)
        return out.view(q.shape)

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Tensor | None = None,
    ) -> Tensor:
        assert causal and block_table is not None and softmax_scale is not None
        _check_pages(k, page_multiple)
        _check_tables(cu_seqlens_q, cu_seqlens_k, block_table)
        lengths = cu_seqlens_k.diff()
        assert int(cu_seqlens_q.diff().max()) <= max_seqlen_q and int(lengths.max()) <= max_seqlen_k
        out = paged(q, k, v, cu_seqlens_q, lengths, block_table, softmax_scale, window_size[0], softcap)
        return torch.full_like(out, math.nan) if max_seqlen_q == 1 else out

    return Strict("flash_attn", flash_attn_with_kvcache=flash_attn_with_kvcache, flash_attn_varlen_func=flash_attn_varlen_func)


def _check_pages(keys: Tensor, multiple: int) -> None:
    if keys.shape[1] % multiple:
        raise RuntimeError(f"Paged KV cache block size must be divisible by {multiple}")


def flash_attn3() -> Strict:
    """flash-attn 3."""

    def flash_attn_with_kvcache(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        qv: Tensor | None = None,
        rotary_cos: Tensor | None = None,
        rotary_sin: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
        cache_batch_idx: Tensor | None = None,
        cache_leftpad: Tensor | None = None,
        page_table: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k_new: Tensor | None = None,
        max_seqlen_q: int | None = None,
        rotary_seqlens: Tensor | None = None,
        q_descale: Tensor | None = None,
        k_descale: Tensor | None = None,
        v_descale: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        attention_chunk: int = 0,
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        scheduler_metadata: Tensor | None = None,
        num_splits: int = 0,
        pack_gqa: bool | None = None,
        sm_margin: int = 0,
        return_softmax_lse: bool = False,
    ) -> Tensor:
        assert causal and cache_seqlens is not None and page_table is not None
        assert cu_seqlens_q is not None and softmax_scale is not None and max_seqlen_q is not None
        _check_tables(cache_seqlens, page_table, cu_seqlens_q)
        assert int(cu_seqlens_q.diff().max()) <= max_seqlen_q
        return paged(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, softmax_scale, window_size[0], softcap)

    return Strict("flash_attn_interface", flash_attn_with_kvcache=flash_attn_with_kvcache)


class BatchPrefillWithPagedKVCacheWrapper:
    """FlashInfer's wrapper for ragged rows over a paged cache."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False) -> None:
        assert float_workspace_buffer.dtype is torch.uint8 and kv_layout == "NHD"
        self.plans = 0

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        """Remember the step."""
        assert causal and sm_scale is not None
        _check_tables(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        counts = paged_kv_indptr.diff()
        self._tables = torch.zeros(len(counts), int(counts.max()), dtype=torch.int32)
        for row, (begin, end) in enumerate(zip(paged_kv_indptr.tolist(), paged_kv_indptr.tolist()[1:], strict=False)):
            self._tables[row, : end - begin] = paged_kv_indices[begin:end]
        self._lengths = (counts - 1) * page_size + paged_kv_last_page_len
        self._starts, self._wishes = qo_indptr, (sm_scale, window_left, logits_soft_cap or 0.0)
        self._expected = ((num_qo_heads, head_dim_qk), (page_size, num_kv_heads, head_dim_qk), q_data_type, kv_data_type)
        self.plans += 1

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        """One layer of the step."""
        keys, values = paged_kv_cache
        assert (tuple(q.shape[1:]), tuple(keys.shape[1:]), q.dtype, keys.dtype) == self._expected
        return paged(q, keys, values, self._starts, self._lengths, self._tables, *self._wishes)


def flashinfer() -> Strict:
    """FlashInfer."""
    return Strict("flashinfer", BatchPrefillWithPagedKVCacheWrapper=BatchPrefillWithPagedKVCacheWrapper)


def aiter() -> Strict:
    """AITER's unified attention."""

    def unified_attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        cu_seqlens_q: Tensor,
        max_seqlen_q: int,
        seqused_k: Tensor,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        block_table: Tensor,
        softcap: float,
        q_descale: Tensor | None,
        k_descale: Tensor | None,
        v_descale: Tensor | None,
        alibi_slopes: Tensor | None = None,
        output_scale: Tensor | None = None,
        qq_bias: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        assert causal and q_descale is None
        _check_tables(cu_seqlens_q, seqused_k, block_table)
        out.copy_(paged(q, k, v, cu_seqlens_q, seqused_k, block_table, softmax_scale, window_size[0], softcap))

    return Strict("aiter.ops.triton.attention.unified_attention", unified_attention=unified_attention)


def xpu_kernels(available: bool = True) -> Strict:
    """vLLM's kernels for Intel GPUs."""

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        max_seqlen_q: int,
        cu_seqlens_q: Tensor,
        max_seqlen_k: int,
        cu_seqlens_k: Tensor | None = None,
        seqused_k: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] | None = None,
        softcap: float = 0.0,
        block_table: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        assert causal and seqused_k is not None and block_table is not None
        assert window_size is not None and softmax_scale is not None and softcap == 0 and k.shape[1] in (16, 32, 64)
        _check_tables(cu_seqlens_q, seqused_k, block_table)
        return paged(q, k, v, cu_seqlens_q, seqused_k, block_table, softmax_scale, window_size[0])

    return Strict("vllm_xpu_kernels.flash_attn_interface", flash_attn_varlen_func=flash_attn_varlen_func, FA2_AVAILABLE=available)


def ipex() -> Strict:
    """Intel's extension for PyTorch 2.8, as far as its paged attention goes."""

    class PagedAttention:
        @classmethod
        def flash_attn_varlen_func(
            cls,
            output: Tensor,
            query: Tensor,
            k_cache: Tensor,
            v_cache: Tensor,
            cu_seq_lens_q: Tensor,
            cu_seq_lens_kv: Tensor,
            max_seq_len_q: int,
            max_seq_len_kv: int,
            scale: float,
            is_causal: bool,
            block_table: Tensor,
            alibi_slopes: Tensor | None = None,
            window_size_left: int = -1,
            window_size_right: int = -1,
            k_scale: float = 1.0,
            v_scale: float = 1.0,
            softcap: float = -1.0,
        ) -> None:
            lengths = cu_seq_lens_kv.diff()
            assert is_causal and alibi_slopes is None and k_scale == v_scale == 1 and window_size_right in (0, -1)
            assert max_seq_len_kv >= int(lengths.max()) and max_seq_len_q <= max_seq_len_kv and k_cache.shape[1] == 64
            _check_tables(cu_seq_lens_q, cu_seq_lens_kv, block_table)
            cap = softcap if softcap > 0 else 0.0
            made = paged(query, k_cache, v_cache, cu_seq_lens_q, lengths, block_table, scale, window_size_left, cap)
            output.copy_(made)

    return Strict("intel_extension_for_pytorch.llm.modules", PagedAttention=PagedAttention)


def varlen() -> Strict:
    """torch's ragged attention, which no build has for the CPU; with its own fault: split rows are wrong."""

    def varlen_attn(*arguments: Any, **wishes: Any) -> Tensor:
        query, keys, values, starts, key_starts, max_query, max_keys = arguments
        assert key_starts is None and max_query <= max_keys and wishes["window_size"][1] == 0
        _check_pages(keys, 256)
        _check_tables(starts, wishes["seqused_k"], wishes["block_table"])
        out = paged(
            query, keys, values, starts, wishes["seqused_k"], wishes["block_table"], wishes["scale"], wishes["window_size"][0]
        )
        return out if wishes["num_splits"] == 1 else torch.full_like(out, math.nan)

    varlen_attn.__wrapped__ = real_varlen_attn  # type: ignore[attr-defined]  # the signature that is inspected
    return Strict("torch.nn.attention.varlen", varlen_attn=varlen_attn)
