"""Dense panels; see `native/dense.h`."""

from __future__ import annotations

from tgi_backend_cpu.interface import Layout
from tgi_backend_cpu.kernels import Arena
from tgi_backend_cpu.packing.panels import Unpacked


class DensePanels:
    """Supports weights of every layout, dequantized."""

    layout = Layout.DENSE

    def pack(self, asked: Unpacked, arena: Arena) -> int:
        """See `PackedLayout.pack`."""
        to = arena.take(asked.dense_bytes)
        asked.write(to)
        return to
