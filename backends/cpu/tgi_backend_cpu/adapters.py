"""LoRA adapters packed for the native kernels. As with all native GEMMs, a row's bits do not depend on the other rows of its step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_backend_cpu.interface import PROJECTIONS, PackedLora, PackedLoras, Panels, Segment
from tgi_backend_cpu.kernels import DTYPES, Arena, Kernels
from tgi_backend_cpu.packing import pack
from tgi_core.engine.decoder.adapters import LoraSlice, TableAdapter
from tgi_core.engine.lora.layers import RunningStep
from tgi_core.engine.lora.weights import LoraWeights
from tgi_core.engine.quantization.weight import Dense


class PackedAdapters:
    """An array of `count` native `PackedLoras`, filled one by one."""

    def __init__(self, kernels: Kernels, arena: Arena, count: int) -> None:
        self.found = (PackedLoras * max(1, count))()
        self.num_bytes = 0
        self.ranks = 0
        """The largest total rank of any one entry."""
        self._kernels, self._arena = kernels, arena
        self._kept: list[object] = []

    def put(self, index: int, slices: Sequence[LoraSlice]) -> None:
        """Pack an adapter's slices of one merged projection."""
        if not slices:
            return
        before = self._arena.num_bytes
        packed = (PackedLora * len(slices))(*map(self._packed, slices))
        self._kept.append(packed)
        self.found[index] = PackedLoras(packed, len(slices))
        self.num_bytes += self._arena.num_bytes - before
        self.ranks = max(self.ranks, sum(each.lora_b.shape[0] for each in slices))

    def _packed(self, lora: LoraSlice) -> PackedLora:
        lora_a = pack(self._kernels, self._arena, [Dense.of(lora.lora_a.t())], panels=Panels.LOW)
        return PackedLora(lora_a, pack(self._kernels, self._arena, [Dense.of(lora.lora_b.t())]), lora.first)


def pack_table(kernels: Kernels, arena: Arena, adapters: Sequence[TableAdapter], layers: int) -> PackedAdapters:
    """All adapters of a decoder, indexed by adapter, layer and projection. Raises InvalidModel if a value is not finite."""
    packed = PackedAdapters(kernels, arena, len(adapters) * layers * len(PROJECTIONS))
    for number, adapter in enumerate(adapters):
        for index in range(layers):
            slices = adapter.layer(index)
            for at, projection in enumerate(PROJECTIONS):
                packed.put((number * layers + index) * len(PROJECTIONS) + at, slices[projection])
    return packed


class NativeLoraKernel:
    """The adapters of one layer of a model that runs module by module; see `LoraKernel`."""

    def __init__(self, kernels: Kernels, arena: Arena, weights: dict[int, LoraWeights]) -> None:
        self._kernels = kernels
        self._packed = PackedAdapters(kernels, arena, max(weights) + 1)
        for number, (lora_a, lora_b) in weights.items():
            self._packed.put(number, [LoraSlice(lora_a, lora_b, 0)])
        self.num_bytes = self._packed.num_bytes
        self._numbers = frozenset(weights)

    def add(self, input: Tensor, out: Tensor, step: RunningStep) -> None:
        """In place, for input [..., tokens, in] and out [..., tokens, out]; the latter may be columns of a wider tensor."""
        dtype, rows, sums = input.dtype, input.reshape(-1, input.shape[-1]).contiguous(), out.view(-1, out.shape[-1])
        if dtype not in DTYPES or out.dtype is not dtype or sums.stride(1) != 1:
            raise ValueError(f"adapters of a layer from {dtype} to {out.dtype}")
        mine = [each for each in step.segments if each[0] in self._numbers]
        if not mine:
            return
        segments = (Segment * len(mine))(
            *(Segment(number, start, len(rows) if end is None else end) for number, start, end in mine)
        )
        self._kernels.call.tgi_add_lora(
            self._kernels.pool,
            int(dtype is torch.bfloat16),
            self._packed.found,
            segments,
            len(mine),
            rows.data_ptr(),
            rows.shape[1],
            sums.data_ptr(),
            sums.stride(0),
            sums.shape[1],
        )
