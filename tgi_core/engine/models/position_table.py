"""Positions of tokens for models that take none: a module of theirs embeds positions, and counts on from the length of the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class PositionTable:
    """The module `embed_positions` of a decoder, which adds an embedding of each position; while `at` is active, it reads a table."""

    def __init__(self, decoder: nn.Module) -> None:
        self._embedding: Any = next((m for name, m in decoder.named_modules() if name.endswith("embed_positions")), None)
        self._table: Tensor | None = None
        self._pad_table: Tensor | None = None
        self._pad, self._flat = -1, False
        self._ids = self._positions = torch.zeros(0)
        self._active = False
        if self._embedding is not None:
            self._embed = self._embedding.forward
            self._embedding.forward = self._embedded

    @property
    def exists(self) -> bool:
        """Whether the decoder has such a module."""
        return self._embedding is not None

    def reserve(self, positions: int, pad: int | None, embed: Callable[[Tensor], object]) -> None:
        """Make the table. `embed` calls the decoder with token ids [1, positions]; some models give the token `pad` no position."""
        if self._embedding is None:
            return
        self._pad = -1 if pad is None else pad
        self._table = self._recorded(torch.full((1, positions), 0 if self._pad else 1), embed)
        if pad is not None:
            self._pad_table = self._recorded(torch.full((1, positions), pad), embed)
            if self._table.is_meta or torch.equal(self._pad_table, self._table):
                self._pad_table = None

    @contextmanager
    def at(self, ids: Tensor, positions: Tensor) -> Iterator[None]:
        """Inside, the decoder runs tokens `ids` at `positions`, [rows, tokens] each."""
        self._ids, self._positions, self._active = ids, positions, True
        try:
            yield
        finally:
            self._active = False

    def _embedded(self, *args: Any, **kwargs: Any) -> Tensor:
        if not self._active or self._table is None:
            return self._embed(*args, **kwargs)
        found = self._table[self._positions]
        if self._pad_table is not None:
            found = torch.where((self._ids == self._pad).unsqueeze(-1), self._pad_table[self._positions], found)
        return found[0] if self._flat and found.shape[0] == 1 else found

    def _recorded(self, ids: Tensor, embed: Callable[[Tensor], object]) -> Tensor:
        """The embedding's output for a row of these ids, [positions, hidden]."""
        original = self._embed

        def record(*args: Any, **kwargs: Any) -> Tensor:
            raise _Found(original(*args, **kwargs))

        self._embed = record
        try:
            embed(ids)
        except _Found as found:
            self._flat = found.value.ndim == 2
            return found.value.reshape(-1, found.value.shape[-1])[-ids.shape[1] :]
        finally:
            self._embed = original
        raise ValueError("the decoder does not call its embed_positions")


class _Found(Exception):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value
