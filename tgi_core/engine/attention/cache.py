"""The paged KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

BLOCK_SIZES: tuple[int, ...] = (16, 32, 64, 128)
"""Positions per block to choose from, the best first."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer keeps per position; keys and values may differ in width."""

    kv_heads: int
    key_width: int
    value_width: int

    def elements(self) -> int:
        """Elements per position."""
        return self.kv_heads * (self.key_width + self.value_width)


class PagedLayer(Protocol):
    """One layer's keys and values in blocks, in a layout that its attention provider knows."""

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [kv_heads, tokens, width] at `slots` [tokens], counted as block · block_size + offset; −1 is nowhere."""

    def wipe(self, blocks: Tensor) -> None:
        """Let blocks that are begun but not filled show nothing of their last owners."""


@runtime_checkable
class DenseLayer(PagedLayer, Protocol):
    """A layer whose keys and values are contiguous tensors [num_blocks + 1, block_size, kv_heads, width] each."""

    keys: Tensor
    values: Tensor


NewLayer = Callable[[LayerShape, int, int, torch.dtype, torch.device], PagedLayer]
"""(shape, num_blocks, block_size, dtype, device) → a layer's cache."""


@dataclass(frozen=True, slots=True)
class Fp8Cache:
    """Numbers of 8 bits for a cache: the name that was asked for, and the device's variant of it."""

    name: str
    dtype: torch.dtype


def cast_for_cache(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values as a cache of this dtype holds them: in a type of 8 bits, what is beyond its greatest number becomes that."""
    if values.dtype is dtype or dtype.itemsize > 1:
        return values.to(dtype)
    most = torch.finfo(dtype).max
    return values.clamp(-most, most).to(dtype)


def movable(values: Tensor) -> Tensor:
    """The same memory; numbers of 8 bits as integers, since torch does not know them where it only fills, picks or copies."""
    return values.view(torch.uint8) if values.dtype.itemsize == 1 else values


class LayerCache:
    """Keys and values of one layer, [num_blocks + 2, block_size, kv_heads, width] each; block 0 stays zero, the last is for waste."""

    __slots__ = ("flat_keys", "flat_values", "keys", "values")

    def __init__(self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> None:
        rows = (num_blocks + 2, block_size, shape.kv_heads)
        self.keys = torch.zeros(*rows, shape.key_width, dtype=dtype, device=device)
        self.values = torch.zeros(*rows, shape.value_width, dtype=dtype, device=device)
        self.flat_keys = self.keys.view(-1, shape.kv_heads, shape.key_width)
        self.flat_values = self.values.view(-1, shape.kv_heads, shape.value_width)

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [kv_heads, tokens, width] at `slots` [tokens]; −1 counts from the end, which is in nobody's block."""
        for flat, given in ((self.flat_keys, key), (self.flat_values, value)):
            movable(flat).index_put_((slots,), movable(cast_for_cache(given, flat.dtype)).transpose(0, 1))

    def wipe(self, blocks: Tensor) -> None:
        """Zero whole blocks.

        A block that is begun but not filled would otherwise show what its last owner left there. Masked positions weigh zero, but
        zero times NaN is NaN: a faulted row could reach its successor.
        """
        movable(self.keys).index_fill_(0, blocks, 0)
        movable(self.values).index_fill_(0, blocks, 0)


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
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.layers = tuple(new_layer(shape, num_blocks, block_size, dtype, device) for shape in shapes)

    @staticmethod
    def block_bytes(shapes: tuple[LayerShape, ...], block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers."""
        return block_size * sum(shape.elements() for shape in shapes) * dtype.itemsize
