"""The shapes that attention kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from tgi_core.engine.triton.tiles import power_of_two

_LEAST_WIDTH = 16
"""The smallest width of a tile's GEMM."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """A layer's sizes, as constants of a kernel. `page` is the number of positions in a block of the cache.

    `window`, `chunk`, `softcap` and `sinks` have the meaning of `AttentionParameters`. `alibi` says that scores fall linearly with
    distance, by a slope per query head.
    """

    kv_heads: int
    group: int
    """Query heads per KV head."""
    key_width: int
    value_width: int
    page: int
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.group

    @property
    def key_block(self) -> int:
        """Elements of a key in a tile: a power of two, of which what exceeds the width is never loaded."""
        return max(_LEAST_WIDTH, power_of_two(self.key_width))

    @property
    def value_block(self) -> int:
        """The same for values."""
        return max(_LEAST_WIDTH, power_of_two(self.value_width))

    @property
    def limited(self) -> bool:
        """Whether a query may see less than all positions before it."""
        return self.window is not None or self.chunk is not None

    @property
    def natural(self) -> bool:
        """Whether scores are needed at their own scale before the softmax."""
        return self.softcap is not None or self.alibi
