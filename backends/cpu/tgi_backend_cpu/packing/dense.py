"""Numbers as they are; `native/dense.h`."""

from __future__ import annotations

from tgi_backend_cpu.kernels import Arena
from tgi_backend_cpu.packing.panels import Unpacked
from tgi_backend_cpu.tables import Layout


class DensePanels:
    """Serves weights of every layout, dequantized."""

    layout = Layout.DENSE

    def pack(self, asked: Unpacked, arena: Arena) -> int:
        """See `PackedLayout.pack`."""
        to = arena.take(asked.dense_bytes)
        asked.write(to)
        return to
