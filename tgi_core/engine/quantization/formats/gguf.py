"""GGUF files: blocks of codes and scales along each row; `engine.weights.gguf` names the parts.

Source: https://github.com/ggml-org/ggml, src/ggml-quants.c; https://github.com/ggml-org/llama.cpp, gguf-py/gguf/quants.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import check_parts
from tgi_core.engine.quantization.formats.gguf_blocks import BLOCKS, block_weight
from tgi_core.engine.quantization.weight import Dense, Weight
from tgi_core.engine.weights.gguf import PAIRS, PLUS_ONE
from tgi_core.engine.weights.headers import TensorEntry


class Gguf(Format):
    """Blocks of any type, and plain tensors whose values or rows are in another order."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`. `head_size` is the number of rows of a head, in models whose queries and keys are stored in pairs."""
        size = settings.get("head_size")
        if size is not None and (type(size) is not int or size < 2 or size % 2):
            raise ValueError(f"head_size is {str(size)[:60]}; supported are even numbers")
        self._head = size or 0

    def is_mark(self, part: str) -> bool:
        """See `Format.is_mark`."""
        return part.partition("/")[0] in (*BLOCKS, "F32", "F16", "BF16")

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, ...]:
        """See `Format.shape`."""
        [part, *others] = parts
        check_parts(others, ())
        entry, block = parts[part], BLOCKS.get(part.partition("/")[0])
        if part.endswith(PAIRS) and (not self._head or entry.shape[0] % self._head):
            raise ValueError(f"has {entry.shape[0]} rows, which heads of {self._head} don't divide")
        return entry.shape if block is None else (entry.shape[0], entry.shape[1] // block.size * block.elements)

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        [(part, stored)] = parts.items()
        if part.endswith(PLUS_ONE):
            return Dense.of((stored.float() - 1).to(dtype))
        name = part.partition("/")[0]
        weight = block_weight(stored, name, dtype) if name in BLOCKS else Dense.of(stored.to(dtype))
        if not part.endswith(PAIRS):
            return weight
        rows = torch.arange(stored.shape[0]).view(-1, self._head // 2, 2)
        return weight.reordered(rows.transpose(1, 2).flatten())
