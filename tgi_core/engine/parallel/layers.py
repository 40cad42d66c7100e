"""The layers of a model in which ranks communicate.

A linear layer stays one, inside a wrapper: it can be merged with its siblings, packed or quantized as in an undivided model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tgi_core.engine.attention.interface import HEAD_SHARD
from tgi_core.engine.attention.sharing import HeadShard
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.parallel.partition import Partition, shard_range
from tgi_core.engine.parallel.plan import Style


class ParallelLayer(nn.Module):
    """A wrapper with the weight and bias of the layer inside, for models that read them."""

    def __init__(self, inner: nn.Module, collectives: Collectives) -> None:
        super().__init__()
        self.inner, self._collectives = inner, collectives

    @property
    def weight(self) -> Tensor:
        """The inner layer's."""
        return self.inner.weight  # type: ignore[return-value]

    @property
    def bias(self) -> Tensor | None:
        """The inner layer's."""
        return self.inner.bias  # type: ignore[return-value]


class RowParallel(ParallelLayer):
    """A layer over this rank's part of the inputs; outputs are all-reduced."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., some inputs] → [..., outputs]."""
        return self._collectives.reduce(self.inner(input))


class RowParallelSplitInput(ParallelLayer):
    """A `RowParallel` layer that is called with all inputs."""

    def __init__(self, inner: nn.Module, collectives: Collectives, size: int) -> None:
        super().__init__(inner, collectives)
        self._start, self._end = shard_range(size, collectives.rank, collectives.world)

    def forward(self, input: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs]."""
        return self._collectives.reduce(self.inner(input[..., self._start : self._end]))


class ColumnParallelGathered(ParallelLayer):
    """A layer that computes this rank's part of the outputs, which are all-gathered."""

    def __init__(self, inner: nn.Module, collectives: Collectives, sizes: tuple[int, ...]) -> None:
        super().__init__(inner, collectives)
        self._sizes = sizes

    def forward(self, input: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs]."""
        return self._collectives.gather(self.inner(input), self._sizes)


class VocabParallel(ParallelLayer):
    """An embedding of this rank's part of the vocabulary."""

    def __init__(self, inner: nn.Module, collectives: Collectives, size: int) -> None:
        super().__init__(inner, collectives)
        self._start, self._end = shard_range(size, collectives.rank, collectives.world)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] → [..., width]."""
        local = ids - self._start
        absent = (local < 0) | (local >= self._end - self._start)
        return self._collectives.reduce(self.inner(local.masked_fill(absent, 0)).masked_fill(absent.unsqueeze(-1), 0))


def insert_collectives(model: PreTrainedModel, parts: Partition, collectives: Collectives, whole: dict[str, torch.Size]) -> None:
    """Add wrappers and hooks to the layers in which ranks communicate; `whole` are the undivided shapes of the parameters."""
    for name, style in parts.collective_styles.items():
        module = model.get_submodule(name)
        if style is Style.ROWS:
            model.set_submodule(name, RowParallel(module, collectives))
        elif style is Style.ROWS_SPLIT:
            model.set_submodule(name, RowParallelSplitInput(module, collectives, whole[f"{name}.weight"][1]))
            # If its input is attention's output, this rank's heads suffice; other modules never call attention.
            setattr(model.get_submodule(name.rpartition(".")[0]), HEAD_SHARD, HeadShard(collectives.rank, collectives.world))
        elif style is Style.COLUMNS_GATHERED:
            model.set_submodule(name, ColumnParallelGathered(module, collectives, parts.sizes[name]))
        elif style is Style.VOCABULARY:
            model.set_submodule(name, VocabParallel(module, collectives, whole[f"{name}.weight"][0]))
        elif style is Style.SUMMED:
            module.register_forward_hook(_summing(collectives))
        elif style is Style.SHARED_INPUT:
            module.register_forward_pre_hook(_sharing(collectives.world))


def _summing(collectives: Collectives) -> Any:
    """A hook that all-reduces what a module returns, or the first item of a tuple."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (collectives.reduce(output[0]), *output[1:])
        return collectives.reduce(output)

    return hook


def _sharing(world: int) -> Any:
    """A hook for a module that every rank runs whole inside one that is summed."""

    def hook(module: nn.Module, args: Any) -> Any:
        return (args[0] / world, *args[1:])

    return hook
