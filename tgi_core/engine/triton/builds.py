"""Lists what a module's kernels are compiled for, so that they can be compiled ahead of time for any chip.

A module of kernels takes part by a function `builds(tiles: TileTable) -> Iterator[Build]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tgi_core.engine.triton.shape import AttentionShape
from tgi_core.engine.triton.tiles import Phase, Tile, TileTable

ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of an element, by Triton's name of the type."""


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel with one set of constants.

    `types` are those of the other arguments in Triton's words, with the known divisor of a value or an address:
    "*bf16:16", "i32", "i32:16". `labels` describe it to people. `programs` is how many of them a multiprocessor must hold.
    """

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, object]
    options: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    programs: int = 1


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """An attention layer to compile for: the dtype of queries, and of the cache where it is another."""

    dtype: str
    shape: AttentionShape
    feature: str = "plain"
    cache: str = ""

    def tile(self, tiles: TileTable, phase: Phase) -> Tile:
        """The chip's tile for it."""
        return tiles.choose(phase, ITEMSIZE[self.dtype], max(self.shape.key_width, self.shape.value_width))

    def types(self) -> dict[str, str]:
        """The types of the arguments that both attention kernels have."""
        element, stored = f"*{self.dtype}:16", f"*{self.cache or self.dtype}:16"
        return {
            "out": element,
            "query": element,
            "keys": stored,
            "values": stored,
            **dict.fromkeys(("cu_seqlens", "lengths", "tables"), "*i32"),
            **dict.fromkeys(("sinks", "slopes"), "*fp32:16"),
            **dict.fromkeys(("scale", "value_scale"), "fp32"),
            **dict.fromkeys(("rows", "table_stride"), "i32"),
            **dict.fromkeys(("head_stride", "token_stride"), "i32:16"),
        }

    def labels(self, kernel: str, feature: str = "") -> dict[str, str]:
        """The labels of a build of it."""
        shape = self.shape
        width = f"{shape.key_width}" if shape.key_width == shape.value_width else f"{shape.key_width}/{shape.value_width}"
        return {
            "kernel": kernel,
            "dtype": self.dtype,
            "width": width,
            "page": str(shape.page),
            "feature": feature or self.feature,
        }


WIDTHS = ((64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (256, 256))
"""Widths of keys and values that are compiled for."""

_LLAMA = AttentionShape(kv_heads=8, group=4, key_width=128, value_width=128, page=16)

_FEATURES = {
    "page 32": replace(_LLAMA, page=32),
    "page 64": replace(_LLAMA, page=64),
    "page 128": replace(_LLAMA, page=128),
    "group 1": replace(_LLAMA, group=1),
    "group 7": replace(_LLAMA, group=7),
    "group 16": replace(_LLAMA, group=16),
    "window": replace(_LLAMA, window=4096),
    "chunk": replace(_LLAMA, chunk=8192),
    "window, softcap": replace(_LLAMA, window=4096, softcap=50.0, key_width=256, value_width=256, group=2),
    "window, sinks": replace(_LLAMA, window=128, sinks=True, key_width=64, value_width=64, group=8),
    "alibi": replace(_LLAMA, alibi=True),
}


def attention_cases(tiles: TileTable) -> Iterator[AttentionCase]:
    """Every width with every dtype, as far as the chip has tiles, and every feature once."""
    for dtype in ITEMSIZE:
        for key_width, value_width in WIDTHS:
            if not tiles.serves(ITEMSIZE[dtype], key_width):
                continue
            yield AttentionCase(dtype, replace(_LLAMA, key_width=key_width, value_width=value_width))
    for feature, shape in _FEATURES.items():
        yield AttentionCase("bf16", shape, feature)
    if tiles.fp8:
        yield AttentionCase("bf16", _LLAMA, "8-bit cache", tiles.fp8)
