"""The panels that weights are packed into."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from tgi_backend_cpu.interface import Layout, Panels
from tgi_backend_cpu.kernels import Arena, Kernels
from tgi_core.engine.quantization.weight import Weight

Forget = Callable[[], None]
"""Drops memory that weights were read into and can be read into again, such as pages of mapped files."""


def panel_sizes(kernels: Kernels, half: bool, panels: Panels, columns: int, depth: int) -> tuple[int, int]:
    """The number of dense panels of a weight [columns, depth] with elements of two bytes, or four, and the bytes of a panel."""
    count, panel_bytes = ctypes.c_size_t(), ctypes.c_size_t()
    kernels.call.tgi_packed_size(half, panels, columns, depth, ctypes.byref(count), ctypes.byref(panel_bytes))
    return count.value, panel_bytes.value


class Unpacked:
    """Weights [out, in] to be packed as the `count` panels of one GEMM, of `panel_bytes` each in the dense layout."""

    def __init__(self, kernels: Kernels, weights: Sequence[Weight], panels: Panels, forget: Forget) -> None:
        self.kernels, self.weights, self.panels, self.forget = kernels, weights, panels, forget
        self.dtype, self.depth = weights[0].dtype, weights[0].shape[1]
        self.columns = sum(weight.shape[0] for weight in weights)
        if any(weight.dtype is not self.dtype for weight in weights):
            raise ValueError("weights must be of one dtype")
        self.count, self.panel_bytes = self.sizes(self.dtype is torch.bfloat16, self.depth)

    @property
    def dense_bytes(self) -> int:
        """Bytes of dense panels."""
        return self.count * self.panel_bytes

    def sizes(self, half: bool, depth: int) -> tuple[int, int]:
        """The number of panels with `depth` elements per row, two bytes each or four, and the bytes of a panel."""
        return panel_sizes(self.kernels, half, self.panels, self.columns, depth)

    def write(self, to: int) -> None:
        """Write dense panels to an address."""
        self.write_matrices(to, (weight.dequantize() for weight in self.weights))

    def write_matrices(self, to: int, matrices: Iterable[Tensor]) -> None:
        """Write panels of other matrices that have the weights' rows, with elements of two or four bytes."""
        pairs, block = self.panels is Panels.PAIRS, 0
        for place, matrix in enumerate(matrices):
            rows, depth = matrix.shape
            if rows % 16 and place < len(self.weights) - 1 and not pairs:
                raise ValueError("weights must be of 16 rows or multiples")
            first, matrix = place if pairs else block, matrix.contiguous()
            self.kernels.call.tgi_pack(
                self.kernels.pool, matrix.itemsize == 2, self.panels, to, matrix.data_ptr(), rows, depth, first
            )
            block += rows // 16


class PackedLayout(Protocol):
    """One layout of the native kernels."""

    layout: Layout

    def pack(self, asked: Unpacked, arena: Arena) -> int | None:
        """The address of the packed panels; None if this layout cannot hold them, or not in less memory than the next one."""
