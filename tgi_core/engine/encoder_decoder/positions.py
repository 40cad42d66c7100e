"""Positions per row: a decoder of transformers takes all rows of a batch to be at the same position.

Two kinds of modules depend on it, found by name: `embed_positions`, which adds an embedding of each position, and attention layers with
`compute_bias`, which add a bias per distance. While rows of different lengths run, both read from tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tgi_core.engine.models.position_table import PositionTable


class RowPositions:
    """The modules of a decoder that depend on positions, and the tables for up to `reserve`'s positions."""

    def __init__(self, decoder: nn.Module) -> None:
        self._embedding = PositionTable(decoder)
        self._biases: list[Any] = [
            m for m in decoder.modules() if hasattr(m, "compute_bias") and hasattr(m, "relative_attention_bias")
        ]
        self._distances: dict[nn.Module, Tensor] = {}
        self._positions = torch.zeros(0)
        self._active = False
        for module in self._biases:
            module.compute_bias = _Bias(self, module, module.compute_bias)

    @property
    def has_biases(self) -> bool:
        """Whether attention adds a bias per distance."""
        return bool(self._biases)

    def reserve(self, positions: int, pad: int | None, embed: Callable[[Tensor], object]) -> None:
        """Make the tables; see `PositionTable.reserve`."""
        self._embedding.reserve(positions, pad, embed)
        self._distances = {module: module.compute_bias.by_distance(positions) for module in self._biases}

    def run(self, ids: Tensor, positions: Tensor, step: Callable[[], Tensor]) -> Tensor:
        """Call `step`, in which rows with tokens `ids` [rows, 1] are at `positions` [rows]."""
        self._positions, self._active = positions, True
        try:
            with self._embedding.at(ids, positions.unsqueeze(1)):
                return step()
        finally:
            self._active = False

    def bias(self, module: nn.Module, key_length: int) -> Tensor | None:
        """The bias [rows, heads, 1, keys] of the running rows; None unless there are several."""
        if not self._active:
            return None
        distance = (self._positions[:, None] - torch.arange(key_length, device=self._positions.device)).clamp_min(0)
        return self._distances[module][:, distance].transpose(0, 1).unsqueeze(2)


class _Bias:
    """Stands in for a layer's `compute_bias`."""

    def __init__(self, positions: RowPositions, module: nn.Module, original: Callable[..., Tensor]) -> None:
        self._positions, self._original = positions, original
        self._module: Any = module

    def __call__(self, query_length: int, key_length: int, *args: Any, **kwargs: Any) -> Tensor:
        """The bias [1 or rows, heads, queries, keys]."""
        found = self._positions.bias(self._module, key_length)
        return self._original(query_length, key_length, *args, **kwargs) if found is None else found

    def by_distance(self, positions: int) -> Tensor:
        """[heads, positions]: the bias of the key that many positions before its query."""
        last = positions - 1
        takes = inspect.signature(self._original).parameters
        where: dict[str, Any] = {"past_seen_tokens": last} if "past_seen_tokens" in takes else {}
        if "cache_position" in takes:  # transformers 4
            where = {"cache_position": torch.tensor([last], device=self._module.relative_attention_bias.weight.device)}
        return self._original(1, positions, **where)[0, :, 0].flip(-1).contiguous()
