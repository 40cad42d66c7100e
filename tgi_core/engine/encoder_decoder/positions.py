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


class RowPositions:
    """The modules of a decoder that depend on positions, and the tables for up to `reserve`'s positions."""

    def __init__(self, decoder: nn.Module) -> None:
        self._embedding: Any = next((m for name, m in decoder.named_modules() if name.endswith("embed_positions")), None)
        self._biases: list[Any] = [
            m for m in decoder.modules() if hasattr(m, "compute_bias") and hasattr(m, "relative_attention_bias")
        ]
        self._table: Tensor | None = None
        self._pad_table: Tensor | None = None
        self._pad = -1
        self._distances: dict[nn.Module, Tensor] = {}
        self._ids = self._positions = torch.zeros(0)
        self._active = False
        if self._embedding is not None:
            self._embed = self._embedding.forward
            self._embedding.forward = self._embedded
        for module in self._biases:
            module.compute_bias = _Bias(self, module, module.compute_bias)

    @property
    def has_biases(self) -> bool:
        """Whether attention adds a bias per distance."""
        return bool(self._biases)

    def reserve(self, positions: int, pad: int | None, embed: Callable[[Tensor], object]) -> None:
        """Make the tables. `embed` calls the decoder with token ids [1, positions]; some models give the token `pad` no position."""
        if self._embedding is not None:
            self._pad = -1 if pad is None else pad
            self._table = self._recorded(torch.full((1, positions), 0 if self._pad else 1), embed)
            if pad is not None:
                self._pad_table = self._recorded(torch.full((1, positions), pad), embed)
                if torch.equal(self._pad_table, self._table):
                    self._pad_table = None
        self._distances = {module: module.compute_bias.by_distance(positions) for module in self._biases}

    def run(self, ids: Tensor, positions: Tensor, step: Callable[[], Tensor]) -> Tensor:
        """Call `step`, in which rows with tokens `ids` [rows, 1] are at `positions` [rows]."""
        self._ids, self._positions, self._active = ids, positions, True
        try:
            return step()
        finally:
            self._active = False

    def bias(self, module: nn.Module, key_length: int) -> Tensor | None:
        """The bias [rows, heads, 1, keys] of the running rows; None unless there are several."""
        if not self._active:
            return None
        distance = (self._positions[:, None] - torch.arange(key_length, device=self._positions.device)).clamp_min(0)
        return self._distances[module][:, distance].transpose(0, 1).unsqueeze(2)

    def _embedded(self, *args: Any, **kwargs: Any) -> Tensor:
        if not self._active or self._table is None:
            return self._embed(*args, **kwargs)
        found = self._table[self._positions].unsqueeze(1)
        if self._pad_table is None:
            return found
        return torch.where((self._ids == self._pad).unsqueeze(-1), self._pad_table[self._positions].unsqueeze(1), found)

    def _recorded(self, ids: Tensor, embed: Callable[[Tensor], object]) -> Tensor:
        """The embedding's output for a row of these ids, [positions, hidden]."""
        original = self._embed

        def record(*args: Any, **kwargs: Any) -> Tensor:
            raise _Found(original(*args, **kwargs))

        self._embed = record
        try:
            embed(ids)
        except _Found as found:
            return found.value.reshape(-1, found.value.shape[-1])[-ids.shape[1] :]
        finally:
            self._embed = original
        raise ValueError("the decoder does not call its embed_positions")


class _Found(Exception):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


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
