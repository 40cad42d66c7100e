"""Linear layers that add adapters to some rows of a step.

A step's flat tokens are cut into segments of one adapter each, and each layer adds its two small products to its segments alone: rows
without an adapter, and steps without such rows, go through the very operations of a server without adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from tgi_core.engine.lora.weights import Products

Segment = tuple[int, int, int | None]
"""Adapter, first flat token, end (None: all that follow)."""


class RunningStep:
    """The segments of the step that runs now; all layers of a model look here."""

    __slots__ = ("segments",)

    def __init__(self) -> None:
        self.segments: tuple[Segment, ...] = ()


class LowRankSums(Protocol):
    """What adapters add to one layer, as a device computes it."""

    num_bytes: int

    def add(self, input: Tensor, out: Tensor, step: RunningStep) -> None:
        """Add the step's adapters to out [..., tokens, out] of input [..., tokens, in], in place: the output was made for us alone, or
        is our part of a merged one."""


SumsFactory = Callable[[dict[int, Products]], LowRankSums]
"""One layer's matrices by adapter number → how they are added."""


class TorchSums:
    """By torch: each segment is two products of its own, whose shapes depend on the segment alone and never on its mates. The last
    bits depend on how many tokens of its adapter are in the step where the device's products do."""

    def __init__(self, products: dict[int, Products]) -> None:
        self.products = products
        self.num_bytes = sum(matrix.numel() * matrix.itemsize for pair in products.values() for matrix in pair)

    def add(self, input: Tensor, out: Tensor, step: RunningStep) -> None:
        """See `LowRankSums`."""
        tokens, sums = input.reshape(-1, input.shape[-1]), out.view(-1, out.shape[-1])
        for adapter, start, end in step.segments:
            if adapter in self.products:
                down, up = self.products[adapter]
                inner = tokens[start:end].to(down.dtype) @ down
                if up.dtype is sums.dtype:
                    sums[start:end].addmm_(inner, up)
                else:
                    sums[start:end].add_(inner @ up)


class AdaptedLinear(nn.Module):
    """Stands in for a linear layer that adapters change."""

    def __init__(self, base: nn.Module, sums: LowRankSums, step: RunningStep) -> None:
        super().__init__()
        self.base = base
        self._sums, self._step = sums, step

    @property
    def weight(self) -> Tensor | nn.Module:
        """The layer's own, for models that look at it."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | nn.Module | None:
        """The same."""
        return self.base.bias

    @property
    def in_features(self) -> int:
        """The same."""
        return int(self.base.in_features)  # type: ignore[arg-type]

    @property
    def out_features(self) -> int:
        """The same."""
        return int(self.base.out_features)  # type: ignore[arg-type]

    def forward(self, input: Tensor) -> Tensor:
        """[..., tokens, in] → [..., tokens, out]."""
        out = self.base(input)
        if self._step.segments:
            self._sums.add(input, out, self._step)
        return out
