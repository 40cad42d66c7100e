"""Native attention over a paged cache in its own layout, for models that run module by module."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tgi_backend_cpu.interface import Cache, Scoring
from tgi_backend_cpu.kernels import DTYPES, Kernels, Memory
from tgi_core.engine.attention.cache import BLOCK_SIZES, LayerShape, PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionLayer

HEAD_SIZES = range(16, 513, 16)
PAGE = 16
CACHE_DTYPES = {"int8": torch.int8, "float8_e4m3fn": torch.uint8}
"""The dtypes of quantized caches, by torch's names. The bytes of e4m3 floats have scales beside them, so these are not torch's dtype."""
NATIVE_CACHES = {torch.int8: 1, torch.uint8: 2}
"""Dtypes of quantized caches, as `CacheDtype` in `native/attention_chunk.h`."""


class NativeLayer:
    """One layer's cache, in the layout of `native/attention.h`."""

    def __init__(self, kernels: Kernels, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self._kernels, self._dtype = kernels, dtype
        self.memory = Memory(kernels, (num_blocks + 1) * block_size * shape.num_bytes(dtype))
        native = NATIVE_CACHES.get(dtype, 0)
        self.cache = Cache(self.memory.address, shape.kv_heads, shape.key_width, block_size, layers=1, dtype=native)

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [kv_heads, tokens, width] at `slots` [tokens]."""
        key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (key, value))
        if value.dtype is not key.dtype or self._dtype not in (key.dtype, *NATIVE_CACHES):
            raise TypeError(f"keys of {key.dtype} in a cache of {self._dtype}")
        self._kernels.call.tgi_write(
            self._kernels.pool,
            int(key.dtype is torch.bfloat16),
            ctypes.byref(self.cache),
            slots.data_ptr(),
            slots.shape[0],
            *(argument for x in (key, value) for argument in (x.data_ptr(), x.stride(1), x.stride(0))),
        )

    def zero_blocks(self, blocks: Tensor) -> None:
        """Nothing to do: kernels never multiply stale elements, except next to a written position, and writing that one clears them."""


class NativeAttention:
    """The provider `native`."""

    name = "native"
    kv_cache_dtypes: tuple[torch.dtype, ...] = tuple(NATIVE_CACHES)
    invariant = True
    sees_ahead = False
    block_sizes = BLOCK_SIZES

    def __init__(self, kernels: Kernels | None, reason: str) -> None:
        self._kernels, self._reason = kernels, reason

    def probe(self) -> str:
        """Why this provider cannot run here; empty if it can."""
        return "" if self._kernels is not None else self._reason

    def refusal(self, layers: Sequence[LayerShape], asked: Sequence[AttentionParameters], dtype: torch.dtype) -> str:
        """Why it does not support these layers; empty if it does."""
        if dtype not in DTYPES:
            return f"the dtype is {dtype}"
        if any(each.selected is not None for each in asked):
            return "layers with an index"
        for shape, parameters in zip(layers, asked, strict=True):
            if shape.key_width != shape.value_width or shape.key_width not in HEAD_SIZES:
                return f"head sizes {shape.key_width} and {shape.value_width}, not one multiple of 16 up to {HEAD_SIZES[-1]}"
            if parameters.sinks is not None or parameters.chunk is not None:
                return "layers with sinks or chunks"
        return ""

    def self_check(self, layers: Sequence[AttentionLayer], dtype: torch.dtype, device: torch.device) -> str:
        """The self-check of the whole model suffices: these kernels are not compiled per shape."""
        return ""

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> NativeLayer:
        """One layer's cache."""
        if self._kernels is None:
            raise RuntimeError(self._reason)
        return NativeLayer(self._kernels, shape, num_blocks, block_size, dtype)

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width], over keys and values in the cache → [tokens, heads, width]."""
        if not isinstance(cache, NativeLayer) or self._kernels is None:
            raise TypeError(f"a cache of {type(cache).__name__}, which another provider made")
        flat = query.transpose(0, 1).contiguous()
        out = torch.empty_like(flat)
        rows, tables = step_rows(step)
        bias = None if parameters.bias is None else parameters.bias.table
        if bias is not None and bias.stride(0) % PAGE:
            raise ValueError(f"biases of {bias.stride(0)} positions a head, which are no whole pages")
        by_position = (0, None) if bias is None else (bias.stride(0), bias.data_ptr())
        scoring = Scoring(parameters.scaling, parameters.softcap or 0.0, parameters.window or 0, *by_position)
        self._kernels.call.tgi_attend(
            self._kernels.pool,
            int(flat.dtype is torch.bfloat16),
            ctypes.byref(cache.cache),
            ctypes.byref(scoring),
            flat.shape[1],
            rows.ctypes.data,
            rows.shape[0],
            tables.ctypes.data,
            tables.shape[1],
            flat.data_ptr(),
            out.data_ptr(),
        )
        return out


def step_rows(step: StepMetadata) -> tuple[np.ndarray, np.ndarray]:
    """[rows, 3] of first token, count and past, and the block tables [rows, blocks], made once per step."""
    if "native" not in step.shared:
        takes = np.fromiter((work.take for work in step.order), np.int32, len(step.order))
        starts = np.fromiter((work.start for work in step.order), np.int32, len(step.order))
        rows = np.stack((step.cu_seqlens[:-1].astype(np.int32), takes, starts), 1)
        step.shared["native"] = (np.ascontiguousarray(rows), np.ascontiguousarray(step.tables, np.int32))
    rows, tables = step.shared["native"]
    return rows, tables
