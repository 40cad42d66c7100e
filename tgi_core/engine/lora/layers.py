"""Linear layers that add adapters to some rows of a step.

A step's flat tokens are cut into segments of one adapter each, and each layer adds its two small products to its segments alone: rows
without an adapter, and steps without such rows, go through the very operations of a server without adapters.
"""

from __future__ import annotations

from torch import Tensor, nn

Segment = tuple[int, int, int | None]
"""Adapter, first flat token, end (None: all that follow)."""

Products = tuple[Tensor, Tensor]
"""Two matrices [in, rank] and [rank, out], the scale multiplied in. Their dtype is that of the sums, whatever the model's is."""


class RunningStep:
    """The segments of the step that runs now; all layers of a model look here."""

    __slots__ = ("segments",)

    def __init__(self) -> None:
        self.segments: tuple[Segment, ...] = ()


class AdaptedLinear(nn.Module):
    """Stands in for a linear layer that adapters change."""

    def __init__(self, base: nn.Module, products: dict[int, Products], step: RunningStep) -> None:
        super().__init__()
        self.base = base
        self._products, self._step = products, step

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
            self._add(input, out)
        return out

    def _add(self, input: Tensor, out: Tensor) -> None:
        """In place: the output was made for us alone, or is our part of a merged one."""
        tokens, sums = input.reshape(-1, input.shape[-1]), out.view(-1, out.shape[-1])
        for adapter, start, end in self._step.segments:
            if adapter in self._products:
                down, up = self._products[adapter]
                inner = tokens[start:end].to(down.dtype) @ down
                if up.dtype is sums.dtype:
                    sums[start:end].addmm_(inner, up)
                else:
                    sums[start:end].add_(inner @ up)
