"""bfloat16 in twelve bits each, without loss, where nearly all numbers share 16 exponents; `native/bf12.h`."""

from __future__ import annotations

import torch

from tgi_backend_cpu.kernels import Arena, Memory
from tgi_backend_cpu.packing.panels import Unpacked
from tgi_backend_cpu.tables import Layout


class Bf12Panels:
    """Weights of every layout, dequantized, that run in bfloat16."""

    layout = Layout.BF12

    def pack(self, asked: Unpacked, arena: Arena) -> int | None:
        """See `PackedLayout.pack`."""
        if asked.dtype is not torch.bfloat16:
            return None
        size = asked.dense_bytes
        dense = Memory(asked.kernels, size)
        asked.write(dense.address)
        to = arena.take(size)
        used = asked.kernels.call.tgi_pack_bf12(asked.kernels.pool, dense.address, asked.count, asked.panel_bytes, to)
        arena.give_back(size - used)
        return to if used else None
