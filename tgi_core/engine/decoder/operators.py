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


class Operators(Protocol):
    """One implementation of the operations."""

    name: str

    def refusal(self, dtype: torch.dtype) -> str:
        """Why it cannot serve a model of this dtype; empty when it can."""

    def norm(self, stream: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """RMS norm of stream [tokens, hidden] → the same shape in the weight's dtype."""

    def join_and_norm(self, stream: Tensor, branch: Tensor, scale: float, weight: Tensor, epsilon: float) -> Tensor:
        """stream += scale · branch in place, both [tokens, hidden]; then its norm, as `norm` gives it."""

    def store(
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        sizes: HeadSizes,
        turns: Tensor | None,
        norms: HeadNorms | None,
        cache: PagedLayer,
    ) -> Tensor:
        """Norm queries and keys, turn them, and write keys and values to the cache at `slots` [tokens]; −1 is not written.

        qkv [tokens, (heads + 2 · kv_heads) · head] may be changed. `turns` [positions, size] holds the cosines of size / 2 angles, then
        their sines, of each position; the first `size` numbers of a head are turned. Returns the queries [heads, tokens, head].
        """

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [tokens, 2 · inner] → SiLU of the first half times the second [tokens, inner]."""
