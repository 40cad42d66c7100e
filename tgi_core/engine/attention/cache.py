"""The paged KV cache, in the model's dtype or quantized to 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tgi_core.backend import CacheGroup

BLOCK_SIZES: tuple[int, ...] = (16, 32, 64, 128)
"""Supported positions per block, best first."""

SPARE_BLOCKS = 2
"""Maximum number of a layer's blocks besides those of rows: the null block, and one for discarded writes."""


@dataclass(frozen=True, slots=True)
class CacheScales:
    """What a layer's keys and values are divided by in a cache of 8-bit floats, as calibration found them for e4m3fn."""

    key: float = 1.0
    value: float = 1.0

    def of(self, dtype: torch.dtype) -> CacheScales:
        """The scales in a cache of a dtype: none where it has more than 8 bits or is no float. The numbers of e4m3fnuz are half of
        e4m3fn's, so its scales are doubled."""
        if dtype.itemsize > 1 or not dtype.is_floating_point:
            return CacheScales()
        return CacheScales(2 * self.key, 2 * self.value) if dtype is torch.float8_e4m3fnuz else self

    @property
    def inverses(self) -> tuple[float, float]:
        """What keys and values are multiplied by when they are stored."""
        return 1 / self.key, 1 / self.value


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The cache of one attention layer per position; keys and values may differ in width. A position sees the last `window` positions,
    itself included; None: all. `scales` are the checkpoint's."""

    kv_heads: int
    key_width: int
    value_width: int
    window: int | None = None
    scales: CacheScales = CacheScales()

    def elements(self) -> int:
        """Elements per position."""
        return self.kv_heads * (self.key_width + self.value_width)

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Bytes per position in a cache of a dtype. Integers, and floats stored as their bytes, have two float32 scales per head, of its
        key and its value."""
        return self.elements() * dtype.itemsize + (0 if dtype.is_floating_point else 8 * self.kv_heads)


class PagedLayer(Protocol):
    """One layer's keys and values in blocks, in the layout of its attention provider."""

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [kv_heads, tokens, width] at `slots` [tokens], which are block · block_size + offset; −1 is not written."""

    def zero_blocks(self, blocks: Tensor) -> None:
        """Clear what previous owners wrote to blocks that are begun but not filled."""


@runtime_checkable
class DenseLayer(PagedLayer, Protocol):
    """A layer whose keys and values are contiguous tensors [num_blocks + 1, block_size, kv_heads, width] each."""

    keys: Tensor
    values: Tensor
    scales: CacheScales
    """What is stored is divided by these."""


NewLayer = Callable[[LayerShape, int, int, torch.dtype, torch.device], PagedLayer]
"""(shape, num_blocks, block_size, dtype, device) → a layer's cache."""
NewLayers = Callable[[Sequence[LayerShape], int, int, torch.dtype, torch.device], tuple[PagedLayer, ...]]
"""The same for all layers."""


@dataclass(frozen=True, slots=True)
class KVCacheDtype:
    """The 8-bit dtype of a quantized KV cache, fp8 or int8: the requested name, and the device's variant of it."""

    name: str
    dtype: torch.dtype


def cast_for_cache(values: Tensor, dtype: torch.dtype, inverse: float = 1.0) -> Tensor:
    """Values in a cache's dtype; for an 8-bit one they are multiplied by the inverse of its scale, and saturate at its largest value."""
    if values.dtype is dtype or dtype.itemsize > 1:
        return values.to(dtype)
    most = torch.finfo(dtype).max
    if inverse != 1:
        values = values.float() * inverse
    return values.clamp(-most, most).to(dtype)


def movable(values: Tensor) -> Tensor:
    """The same memory, with 8-bit floats viewed as integers: torch's fill, index and copy operators do not support them."""
    return values.view(torch.uint8) if values.dtype.itemsize == 1 else values


class LayerCache:
    """Keys and values of one layer, [num_blocks + 2, block_size, kv_heads, width] each; block 0 stays zero, the last is scratch."""

    __slots__ = ("flat_keys", "flat_values", "keys", "scales", "values")

    def __init__(
        self,
        shape: LayerShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        memory: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """`memory`: zeros for keys and values of these sizes, if the caller has them."""
        rows = (num_blocks + SPARE_BLOCKS, block_size, shape.kv_heads)
        self.keys, self.values = memory or tuple(
            torch.zeros(*rows, width, dtype=dtype, device=device) for width in (shape.key_width, shape.value_width)
        )
        self.flat_keys, self.flat_values = self.keys.flatten(0, 1), self.values.flatten(0, 1)
        self.scales = shape.scales.of(dtype)

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [kv_heads, tokens, width] at `slots` [tokens]; −1 is the last slot, in the block for discarded writes."""
        for flat, given, inverse in zip((self.flat_keys, self.flat_values), (key, value), self.scales.inverses, strict=True):
            movable(flat).index_put_((slots,), movable(cast_for_cache(given, flat.dtype, inverse)).transpose(0, 1))

    def zero_blocks(self, blocks: Tensor) -> None:
        """Zero whole blocks.

        A block that is begun but not filled still holds what its last owner wrote. Masked positions have weight zero, but zero times
        NaN is NaN: a faulted row could corrupt the next owner of its block.
        """
        movable(self.keys).index_fill_(0, blocks, 0)
        movable(self.values).index_fill_(0, blocks, 0)


class StackedLayer(LayerCache):
    """One of several layers in the same memory. The first one has the keys and values of all as `stack` [layers, blocks, …]."""

    __slots__ = ("stack",)

    stack: tuple[Tensor, ...]

    def zero_blocks(self, blocks: Tensor) -> None:
        """In the first layer, zero whole blocks of all layers."""
        for part in self.stack:
            movable(part).index_fill_(1, blocks, 0)


def stacked_layers(
    shapes: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[LayerCache, ...]:
    """Caches of layers, in the order in which a step runs them. If all are alike, the first zeroes the blocks of all, with two operators
    per step rather than two per layer. That matters in captured steps, which always zero blocks: the null block if none is begun."""
    if len({replace(shape, window=None, scales=CacheScales()) for shape in shapes}) != 1:
        return tuple(LayerCache(shape, num_blocks, block_size, dtype, device) for shape in shapes)
    rows = (len(shapes), num_blocks + SPARE_BLOCKS, block_size, shapes[0].kv_heads)
    keys, values = (
        torch.zeros(*rows, width, dtype=dtype, device=device) for width in (shapes[0].key_width, shapes[0].value_width)
    )
    layers = []
    for shape, *memory in zip(shapes, keys.unbind(), values.unbind(), strict=True):
        layers.append(StackedLayer(shape, num_blocks, block_size, dtype, device, (memory[0], memory[1])))
        layers[-1].stack = () if len(layers) > 1 else (keys, values)
    return tuple(layers)


class PagedCache:
    """The caches of all layers of a model."""

    def __init__(
        self,
        shapes: tuple[LayerShape, ...],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        new_layer: NewLayer = LayerCache,
        new_layers: NewLayers | None = None,
        windows: CacheGroup | None = None,
    ) -> None:
        """`new_layers` makes all layers at once, if given. `windows` is the group of the layers with a window, if it is not that of the
        others."""
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.windowed = tuple(windows is not None and shape.window is not None for shape in shapes)
        """By layer, whether it is in that group."""
        self.windows: tuple[int | None, ...] = (None,)
        """The window of each group, in the order of rows' block tables."""
        if windows is None:
            sizes = (num_blocks, block_size, dtype, device)
            self.layers = new_layers(shapes, *sizes) if new_layers else tuple(new_layer(shape, *sizes) for shape in shapes)
            return
        self.windows = (windows.window,) if all(self.windowed) else (None, windows.window)
        counts = [windows.num_blocks if inside else num_blocks for inside in self.windowed]
        self.layers = tuple(
            new_layer(shape, count, block_size, dtype, device) for shape, count in zip(shapes, counts, strict=True)
        )

    @staticmethod
    def block_bytes(shapes: tuple[LayerShape, ...], block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers."""
        return block_size * sum(shape.num_bytes(dtype) for shape in shapes)
