"""The operations of a decoder's step beside products and attention, as one small interface.

None of them asks the device for a number, and the shapes of results follow from the shapes of arguments, so that a step can be captured
as a graph. Sums are made in float32 whatever the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """How a row of queries, keys and values divides: `heads`, then twice `kv_heads`, each of `head` numbers."""

    heads: int
    kv_heads: int
    head: int


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norm of single heads: `query` and `key` are weights [head]."""

    query: Tensor
    key: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class Heads:
    """What a layer does to its heads before attention: norms them, then turns them, where it has the one or the other.

    `turns` [positions, size], float32, holds the cosines of size / 2 angles for each position, then their sines; the first `size` numbers
    of a head are rotated, number i with number i + size / 2.
    """

    sizes: HeadSizes
    turns: Tensor | None
    norms: HeadNorms | None


class Operators(Protocol):
    """One implementation of the operations."""

    name: str

    def refusal(self, dtype: torch.dtype) -> str:
        """Why it cannot serve a model of this dtype; empty when it can."""

    def norm(self, stream: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """RMS norm of stream [tokens, hidden] → the same shape in the weight's dtype."""

    def join_and_norm(self, stream: Tensor, branch: Tensor, scale: float, weight: Tensor, epsilon: float) -> Tensor:
        """stream += scale · branch in place, both [tokens, hidden]; then its norm, as `norm` gives it."""

    def store(self, qkv: Tensor, positions: Tensor, slots: Tensor, heads: Heads, cache: PagedLayer) -> Tensor:
        """Norm and turn queries and keys, and write keys and values to the cache at `slots` [tokens]; −1 is not written.

        qkv [tokens, (heads + 2 · kv_heads) · head] may be changed; positions [tokens]. Returns the queries [heads, tokens, head].
        """

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [tokens, 2 · inner] → SiLU of the first half times the second [tokens, inner]."""
