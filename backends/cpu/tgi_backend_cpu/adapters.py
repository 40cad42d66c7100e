"""Adapters packed for the native kernels: a row's sums have the same bits whatever else is in its step, as all native products have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_backend_cpu.kernels import DTYPES, Arena, Kernels
from tgi_backend_cpu.packing import pack
from tgi_backend_cpu.tables import WHERE, LowRank, LowRanks, Panels, Segment
from tgi_core.engine.decoder.adapters import Part, TableAdapter
from tgi_core.engine.lora.layers import RunningStep
from tgi_core.engine.lora.weights import Products
from tgi_core.engine.quantization.weight import Dense


class PackedAdapters:
    """`LowRanks` of so many places, packed one by one."""

    def __init__(self, kernels: Kernels, arena: Arena, places: int) -> None:
        self.found = (LowRanks * max(1, places))()
        self.num_bytes = 0
        self.ranks = 0
        """The most ranks that one adapter has in one place."""
        self._kernels, self._arena = kernels, arena
        self._kept: list[object] = []

    def put(self, place: int, parts: Sequence[Part]) -> None:
        """Pack what an adapter adds in a place."""
        if not parts:
            return
        before = self._arena.num_bytes
        packed = (LowRank * len(parts))(*map(self._low_rank, parts))
        self._kept.append(packed)
        self.found[place] = LowRanks(packed, len(parts))
        self.num_bytes += self._arena.num_bytes - before
        self.ranks = max(self.ranks, sum(part.up.shape[0] for part in parts))

    def _low_rank(self, part: Part) -> LowRank:
        down = pack(self._kernels, self._arena, [Dense.of(part.down.t())], panels=Panels.LOW)
        return LowRank(down, pack(self._kernels, self._arena, [Dense.of(part.up.t())]), part.first)


def pack_table(kernels: Kernels, arena: Arena, adapters: Sequence[TableAdapter], layers: int) -> PackedAdapters:
    """All adapters of a decoder: places are by adapter, layer and product. Raises InvalidModel for numbers that are not finite."""
    packed = PackedAdapters(kernels, arena, len(adapters) * layers * len(WHERE))
    for number, adapter in enumerate(adapters):
        for index in range(layers):
            parts = adapter.layer(index)
            for at, where in enumerate(WHERE):
                packed.put((number * layers + index) * len(WHERE) + at, parts[where])
    return packed


class NativeSums:
    """What adapters add to one layer of a model that runs module by module; see `LowRankSums`."""

    def __init__(self, kernels: Kernels, arena: Arena, products: dict[int, Products]) -> None:
        self._kernels = kernels
        self._packed = PackedAdapters(kernels, arena, max(products) + 1)
        for number, (down, up) in products.items():
            self._packed.put(number, [Part(down, up, 0)])
        self.num_bytes = self._packed.num_bytes
        self._numbers = frozenset(products)

    def add(self, input: Tensor, out: Tensor, step: RunningStep) -> None:
        """In place, for input [..., tokens, in] and out [..., tokens, out], of which the latter may be columns of a wider one."""
        dtype, rows, sums = input.dtype, input.reshape(-1, input.shape[-1]).contiguous(), out.view(-1, out.shape[-1])
        if dtype not in DTYPES or out.dtype is not dtype or sums.stride(1) != 1:
            raise ValueError(f"adapters of a layer from {dtype} to {out.dtype}")
        mine = [each for each in step.segments if each[0] in self._numbers]
        if not mine:
            return
        segments = (Segment * len(mine))(
            *(Segment(number, start, len(rows) if end is None else end) for number, start, end in mine)
        )
        self._kernels.call.tgi_adapt(
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
