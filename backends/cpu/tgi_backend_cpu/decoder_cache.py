"""The KV cache of a decoder's native steps."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tgi_backend_cpu.interface import Layer
from tgi_backend_cpu.kernels import Kernels, Memory
from tgi_core.backend import CacheGroup
from tgi_core.engine.attention.cache import LayerShape


class DecoderCache:
    """One area of memory per cache group: blocks 0…num_blocks, each with the parts of all layers of the group side by side."""

    def __init__(
        self, kernels: Kernels, layers: Sequence[LayerShape], layer_bytes: int, num_blocks: int, windows: CacheGroup | None
    ) -> None:
        """`layer_bytes` are those of one layer's part of a block. `windows` is the group of the layers with a window, if they are not in
        that of all positions."""
        self._layer_bytes = layer_bytes
        inside = [place for place, shape in enumerate(layers) if windows is not None and shape.window is not None]
        outside = [place for place in range(len(layers)) if place not in set(inside)]
        self._members = [members for members in (outside, inside) if members]
        """The layers of each group, in the order of rows' block tables."""
        counts = (num_blocks, num_blocks if windows is None else windows.num_blocks)
        self._memory = [
            Memory(kernels, (count + 1) * len(members) * layer_bytes)
            for count, members in zip(counts, self._members, strict=False)
        ]

    @property
    def tables(self) -> int:
        """Number of block tables per row."""
        return len(self._members)

    def attach(self, layers: ctypes.Array[Layer]) -> None:
        """Point the layers of a decoder to their parts."""
        for group, (memory, members) in enumerate(zip(self._memory, self._members, strict=True)):
            for place, index in enumerate(members):
                layer = layers[index]
                layer.cache, layer.cache_layers = memory.address + place * self._layer_bytes, len(members)
                layer.windowed = int(group > 0)
