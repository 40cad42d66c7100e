"""Lossless bfloat16 in twelve bits per element, for weights nearly all of which share 16 exponents; see `native/bf12.h`."""

from __future__ import annotations

import torch

from tgi_backend_cpu.interface import Layout
from tgi_backend_cpu.kernels import Arena, Memory
from tgi_backend_cpu.packing.panels import Unpacked


class Bf12Panels:
    """Supports weights of every layout, dequantized, in models that run in bfloat16, unless plain numbers
    are faster on this processor."""

    layout = Layout.BF12

    def pack(self, asked: Unpacked, arena: Arena) -> int | None:
        """See `PackedLayout.pack`."""
        if asked.dtype is not torch.bfloat16 or not asked.kernels.bf12:
            return None
        size = asked.dense_bytes
        dense = Memory(asked.kernels, size)
        asked.write(dense.address)
        asked.forget()
        to = arena.take(size)
        used = asked.kernels.call.tgi_pack_bf12(asked.kernels.pool, dense.address, asked.count, asked.panel_bytes, to)
        arena.give_back(size - used)
        return to if used else None
