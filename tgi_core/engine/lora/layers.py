"""Linear layers that add LoRA adapters to some rows of a step.

A step's flat tokens are divided into segments of one adapter each, and each layer adds its two small GEMMs to its segments only. Rows
without an adapter, and steps without such rows, run exactly the operations of a server without adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from tgi_core.engine.lora.weights import LoraWeights

Segment = tuple[int, int, int | None]
"""Adapter, first flat token, end (None: to the end of the step)."""


class RunningStep:
    """The segments of the step that is running; all layers of a model read them here."""

    __slots__ = ("segments",)

    def __init__(self) -> None:
        self.segments: tuple[Segment, ...] = ()


class LoraKernel(Protocol):
    """Computes the adapters of one layer on a device."""

    num_bytes: int

    def add(self, input: Tensor, out: Tensor, step: RunningStep) -> None:
        """Add the step's adapters, computed from input [..., tokens, in], to out [..., tokens, out] in place. `out` is a fresh tensor, or
        this layer's columns of a merged layer's output."""


LoraKernelFactory = Callable[[dict[int, LoraWeights]], LoraKernel]
"""(one layer's matrices by adapter number) → their kernel."""


class TorchLoraKernel:
    """By torch: two GEMMs per segment, whose shapes do not depend on other segments. Where the last bits of the device's GEMMs depend on
    their shape, those of a row depend on how many tokens of its adapter are in the step."""

    def __init__(self, weights: dict[int, LoraWeights]) -> None:
        self.weights = weights
        self.num_bytes = sum(matrix.numel() * matrix.itemsize for pair in weights.values() for matrix in pair)

    def add(self, input: Tensor, out: Tensor, step: RunningStep) -> None:
        """See `LoraKernel.add`."""
        tokens, sums = input.reshape(-1, input.shape[-1]), out.view(-1, out.shape[-1])
        for adapter, start, end in step.segments:
            if adapter in self.weights:
                lora_a, lora_b = self.weights[adapter]
                inner = tokens[start:end].to(lora_a.dtype) @ lora_a
                if lora_b.dtype is sums.dtype:
                    sums[start:end].addmm_(inner, lora_b)
                else:
                    sums[start:end].add_(inner @ lora_b)


class LinearWithLora(nn.Module):
    """Replaces a linear layer that adapters target."""

    def __init__(self, base: nn.Module, lora: LoraKernel, step: RunningStep) -> None:
        super().__init__()
        self.base = base
        self._lora, self._step = lora, step

    @property
    def weight(self) -> Tensor | nn.Module:
        """The base layer's, for models that read it."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | nn.Module | None:
        """The base layer's."""
        return self.base.bias

    @property
    def in_features(self) -> int:
        """The base layer's."""
        return int(self.base.in_features)  # type: ignore[arg-type]

    @property
    def out_features(self) -> int:
        """The base layer's."""
        return int(self.base.out_features)  # type: ignore[arg-type]

    def forward(self, input: Tensor) -> Tensor:
        """[..., tokens, in] → [..., tokens, out]."""
        out = self.base(input)
        if self._step.segments:
            self._lora.add(input, out, self._step)
        return out
