"""FlashInfer (package `flashinfer-python`, written against 0.7.2): a plan per step, then a run per layer.

All its wrappers share one workspace, which takes more memory than everything else in them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tgi_core.engine.accelerator.vendor_attention import Call, Limits, VendorAttention, uploaded
from tgi_core.engine.attention.cache import LayerCache
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.device_queue import CannotCapture

_WORKSPACE_BYTES = 128 * 2**20
"""The size that its documentation recommends."""


class FlashInfer(VendorAttention):
    """The provider `flashinfer`."""

    name = "flashinfer"
    module = "flashinfer"
    calls = (
        Call("BatchPrefillWithPagedKVCacheWrapper", ("float_workspace_buffer", "kv_layout")),
        Call(
            "BatchPrefillWithPagedKVCacheWrapper.plan",
            (
                "qo_indptr",
                "paged_kv_indptr",
                "paged_kv_indices",
                "paged_kv_last_page_len",
                "num_qo_heads",
                "num_kv_heads",
                "head_dim_qk",
                "page_size",
                "causal",
                "sm_scale",
                "window_left",
                "logits_soft_cap",
                "q_data_type",
                "kv_data_type",
            ),
        ),
        Call("BatchPrefillWithPagedKVCacheWrapper.run", ("q", "paged_kv_cache")),
    )
    limits = Limits(widths=(64, 128, 256))

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._workspace: Tensor | None = None
        self.wrappers: dict[object, Any] = {}

    def rows(self, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""
        if not step.order:
            raise CannotCapture("flashinfer plans every step on the host")
        key = ("flashinfer", query.shape[1:], cache.keys.shape[1:], parameters.scaling, parameters.window, parameters.softcap)
        wrapper = self.wrappers.get(key)
        if wrapper is None:
            wrapper = self.wrappers[key] = self._new_wrapper()
        if key not in step.masks:
            step.masks[key] = None  # planned for this step
            self._plan(wrapper, query, cache, step, parameters)
        out: Tensor = wrapper.run(query.contiguous(), (cache.keys, cache.values))
        return out

    def _new_wrapper(self) -> Any:
        if self._workspace is None:
            self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        return self.library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")

    def _plan(self, wrapper: Any, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> None:
        starts, indices, last = pages(step, cache.keys.shape[1])
        wrapper.plan(
            qo_indptr=torch.from_numpy(step.cu_seqlens.astype(np.int32)),
            paged_kv_indptr=torch.from_numpy(starts),
            paged_kv_indices=uploaded(indices, self._device),
            paged_kv_last_page_len=torch.from_numpy(last),
            num_qo_heads=query.shape[1],
            num_kv_heads=cache.keys.shape[2],
            head_dim_qk=query.shape[2],
            page_size=cache.keys.shape[1],
            causal=True,
            sm_scale=parameters.scaling,
            window_left=-1 if parameters.window is None else parameters.window - 1,
            logits_soft_cap=parameters.softcap,
            q_data_type=query.dtype,
            kv_data_type=cache.keys.dtype,
        )


def pages(step: StepMetadata, block_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tables as FlashInfer reads them, int32: where each row's blocks begin [rows + 1], all blocks, positions in each last one [rows]."""
    lengths = np.fromiter((work.start + work.take for work in step.order), np.int32, len(step.order))
    counts = -(-lengths // block_size)
    used = np.arange(step.tables.shape[1]) < counts[:, None]
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return starts, step.tables[used].astype(np.int32), (lengths - (counts - 1) * block_size).astype(np.int32)
