"""How long attention providers take on their device, for the steps that serving consists of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.attention.checking import Case, kind_of, operands, row_inputs
from tgi_core.engine.attention.metadata import StepMetadata, build
from tgi_core.engine.attention.provider import AttentionLayer, AttentionProvider
from tgi_core.engine.device_queue import Work


class Timer(Protocol):
    """Times work on a device, by the device's own clock."""

    @property
    def captures(self) -> bool:
        """Whether the device captures decode steps."""

    def run(self, work: Work) -> float:
        """Seconds that the device takes for the work, after it has been run before."""

    def replay(self, work: Work) -> float:
        """The same for work that is captured, without what the host does for it. Raises CannotCapture."""


@dataclass(frozen=True, slots=True)
class Load:
    """A step that is timed: `rows` rows that run `take` tokens each, after `past` positions in the cache."""

    name: str
    rows: int
    past: int
    take: int

    def case(self, block_size: int, cache_dtype: torch.dtype | None, positions: int) -> Case:
        """The rows, of at most so many positions."""
        take = min(self.take, positions)
        return Case(((min(self.past, positions - take), take),) * self.rows, block_size, cache_dtype)


LOADS = (Load("1 row", 1, 2047, 1), Load("16 rows", 16, 1023, 1), Load("a prompt", 1, 0, 1024))
"""Decode steps of a small and of a larger batch, and a chunk of a prompt."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What is timed: the layers of a model, its dtype and that of an 8-bit cache, and the device's clock."""

    layers: Sequence[AttentionLayer]
    dtype: torch.dtype
    cache_dtype: torch.dtype | None
    device: torch.device
    timer: Timer

    def seconds(self, provider: AttentionProvider) -> list[float]:
        """Seconds for all layers, load by load. Layers of one kind are timed once. Decode steps are captured where the device does that.
        Raises CannotCapture, and whatever the provider raises."""
        counts = Counter(map(kind_of, self.layers))
        kinds = {kind_of(layer): layer for layer in reversed(self.layers)}
        return [sum(count * self._once(provider, kinds[kind], load) for kind, count in counts.items()) for load in LOADS]

    def _once(self, provider: AttentionProvider, layer: AttentionLayer, load: Load) -> float:
        bias = layer.parameters.bias
        case = load.case(
            provider.block_sizes[0], self.cache_dtype, load.past + load.take if bias is None else bias.table.shape[1]
        )
        cache = provider.new_layer(layer.shape, case.blocks, case.block_size, case.cache_dtype or self.dtype, self.device)
        of_queries, *of_cache = operands(layer)
        for inputs in filter(None, (row_inputs(case, past=True), row_inputs(case, past=False))):
            step = build(inputs, case.block_size, self.device)
            if step.begun is not None:
                cache.zero_blocks(step.begun)
            key, value = (self._drawn(heads, len(step.slots), width) for heads, width in of_cache)
            cache.write(step.slots, key, value)
        heads, width = of_queries
        query = self._drawn(heads, len(step.slots), width)
        if load.take > 1 or not self.timer.captures:
            return self.timer.run(lambda: _attend(provider, query, cache, step, layer))
        any_rows = _of_any_rows(step)
        return self.timer.replay(lambda: _attend(provider, query, cache, any_rows, layer))

    def _drawn(self, heads: int, tokens: int, width: int) -> Tensor:
        return torch.randn(heads, tokens, width, dtype=self.dtype, device=self.device)


def _attend(provider: AttentionProvider, query: Tensor, cache: PagedLayer, step: StepMetadata, layer: AttentionLayer) -> None:
    provider.attend(query, cache, step, layer.parameters)


def _of_any_rows(step: StepMetadata) -> StepMetadata:
    """A decode step as it is captured: the host knows its bounds, but not its rows."""
    decode = step.decode and replace(step.decode, equal=False)
    return replace(step, order=[], arrays_built=step.arrays(), decode=decode)
