"""The places in a model where ranks meet.

A linear layer keeps being one, inside a wrapper: it can be merged with its siblings, packed or quantized as in a model that is whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tgi_core.engine.attention.interface import SHARE
from tgi_core.engine.attention.sharing import HeadShare
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.parallel.partition import Partition, share
from tgi_core.engine.parallel.plan import Style


class Joint(nn.Module):
    """A wrapper that looks, to a model that reads its weight, like what it wraps."""

    def __init__(self, inner: nn.Module, collectives: Collectives) -> None:
        super().__init__()
        self.inner, self._collectives = inner, collectives

    @property
    def weight(self) -> Tensor:
        """That of the layer inside."""
        return self.inner.weight  # type: ignore[return-value]

    @property
    def bias(self) -> Tensor | None:
        """That of the layer inside."""
        return self.inner.bias  # type: ignore[return-value]


class Summed(Joint):
    """A layer that takes some of the inputs."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., some inputs] → [..., outputs]."""
        return self._collectives.reduce(self.inner(input))


class SplitSummed(Joint):
    """A layer that takes some of the inputs, and is given all."""

    def __init__(self, inner: nn.Module, collectives: Collectives, size: int) -> None:
        super().__init__(inner, collectives)
        self._start, self._end = share(size, collectives.rank, collectives.world)

    def forward(self, input: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs]."""
        return self._collectives.reduce(self.inner(input[..., self._start : self._end]))


class Gathered(Joint):
    """A layer that makes some of the outputs; all ranks want all."""

    def __init__(self, inner: nn.Module, collectives: Collectives, sizes: tuple[int, ...]) -> None:
        super().__init__(inner, collectives)
        self._sizes = sizes

    def forward(self, input: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs]."""
        return self._collectives.gather(self.inner(input), self._sizes)


class VocabularyPart(Joint):
    """An embedding of some of the tokens."""

    def __init__(self, inner: nn.Module, collectives: Collectives, size: int) -> None:
        super().__init__(inner, collectives)
        self._start, self._end = share(size, collectives.rank, collectives.world)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] → [..., width]."""
        local = ids - self._start
        absent = (local < 0) | (local >= self._end - self._start)
        return self._collectives.reduce(self.inner(local.masked_fill(absent, 0)).masked_fill(absent.unsqueeze(-1), 0))


def join(model: PreTrainedModel, parts: Partition, collectives: Collectives, whole: dict[str, torch.Size]) -> None:
    """Put wrappers and hooks where a partitioned model's ranks meet; `whole` are the shapes of its parameters undivided."""
    for name, style in parts.joints.items():
        module = model.get_submodule(name)
        if style is Style.ROWS:
            model.set_submodule(name, Summed(module, collectives))
        elif style is Style.ROWS_SPLIT:
            model.set_submodule(name, SplitSummed(module, collectives, whole[f"{name}.weight"][1]))
            # If this reads what attention makes, a rank's part of the heads will do; other modules never ask for attention.
            setattr(model.get_submodule(name.rpartition(".")[0]), SHARE, HeadShare(collectives.rank, collectives.world))
        elif style is Style.COLUMNS_GATHERED:
            model.set_submodule(name, Gathered(module, collectives, parts.sizes[name]))
        elif style is Style.VOCABULARY:
            model.set_submodule(name, VocabularyPart(module, collectives, whole[f"{name}.weight"][0]))
        elif style is Style.SUMMED:
            module.register_forward_hook(_summing(collectives))
        elif style is Style.SHARED_INPUT:
            module.register_forward_pre_hook(_sharing(collectives.world))


def _summing(collectives: Collectives) -> Any:
    """A hook that sums what a module returns, or the first of several things."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (collectives.reduce(output[0]), *output[1:])
        return collectives.reduce(output)

    return hook


def _sharing(world: int) -> Any:
    """A hook for what every rank runs whole inside a module that is summed."""

    def hook(module: nn.Module, args: Any) -> Any:
        return (args[0] / world, *args[1:])

    return hook
