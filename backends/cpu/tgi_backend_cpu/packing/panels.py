"""The panels that weights are packed into."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch

from tgi_backend_cpu.interface import Layout, Panels
from tgi_backend_cpu.kernels import Arena, Kernels
from tgi_core.engine.quantization.weight import Weight


class Unpacked:
    """Weights [out, in] to be packed as the `count` panels of one GEMM, of `panel_bytes` each in the dense layout."""

    def __init__(self, kernels: Kernels, weights: Sequence[Weight], panels: Panels) -> None:
        self.kernels, self.weights, self.panels = kernels, weights, panels
        self.dtype, self.depth = weights[0].dtype, weights[0].shape[1]
        self.columns = sum(weight.shape[0] for weight in weights)
        count, panel_bytes = ctypes.c_size_t(), ctypes.c_size_t()
        half = self.dtype is torch.bfloat16
        kernels.call.tgi_packed_size(half, panels, self.columns, self.depth, ctypes.byref(count), ctypes.byref(panel_bytes))
        self.count, self.panel_bytes = count.value, panel_bytes.value

    @property
    def dense_bytes(self) -> int:
        """Bytes of dense panels."""
        return self.count * self.panel_bytes

    def write(self, to: int) -> None:
        """Write dense panels to an address."""
        pairs, block = self.panels is Panels.PAIRS, 0
        for place, weight in enumerate(self.weights):
            rows, depth = weight.shape
            if weight.dtype is not self.dtype or (rows % 16 and place < len(self.weights) - 1 and not pairs):
                raise ValueError("weights must be of one dtype, and of 16 rows or multiples")
            matrix = weight.dequantize().contiguous()
            half, first = self.dtype is torch.bfloat16, place if pairs else block
            self.kernels.call.tgi_pack(self.kernels.pool, half, self.panels, to, matrix.data_ptr(), rows, depth, first)
            block += rows // 16


class PackedLayout(Protocol):
    """One layout of the native kernels."""

    layout: Layout

    def pack(self, asked: Unpacked, arena: Arena) -> int | None:
        """The address of the packed panels; None if this layout cannot hold them, or not in less memory than the next one."""
