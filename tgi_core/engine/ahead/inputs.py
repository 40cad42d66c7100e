"""The inputs of a ragged step, in words whose places follow from a few counts, so that a step with fixed counts can be captured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tgi_core.engine.ahead.buffer_layout import BufferLayout
from tgi_core.engine.row_filters import NEUTRAL, RowFilters


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's inputs on the device, int64 unless noted."""

    temperatures: Tensor
    """[plain], in the sampler's precision; 0 for the argmax."""
    filters: RowFilters
    """[plain]."""
    uniforms: Tensor
    """float32 [plain]."""
    sampled: Tensor
    """[plain], the row slots of rows that are sampled on the device."""
    picked: Tensor
    """[plain or 0], their indices in the logits; empty if they are all logits in order."""
    kept: Tensor
    """[kept or 0], the flat tokens that need logits; empty if all do."""
    scored: Tensor
    """[scored], the flat tokens that the logprobs of prompt tokens are computed from."""
    following: Tensor
    """[scored], those prompt tokens."""
    ids: Tensor
    """[tokens]; −1 − s means the newest token of row slot s, which the host may not know yet."""
    positions: Tensor
    """[tokens]."""
    slots: Tensor
    """[tokens], −1 for padding."""
    row_slots: Tensor
    """[rows]."""
    begun: Tensor
    """[rows], the block that a row begins and does not fill, or the null block."""
    cells: Tensor
    """[updates], flat indices of the block table entries to change on the device."""
    blocks: Tensor
    """int32 [updates], their new blocks."""
    lengths: Tensor
    """int32 [rows], positions after the step; 0 for padding."""
    cu_seqlens: Tensor
    """int32 [rows + 1]."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The sizes of a step's inputs; `picked` and `kept` are 0 if all logits or tokens are used."""

    rows: int
    tokens: int
    plain: int
    picked: int
    kept: int
    updates: int
    scored: int = 0

    @classmethod
    def of_decode(cls, rows: int) -> Counts:
        """A decode step of `rows` rows, all plain, each with room for one new block."""
        return cls(rows, rows, rows, 0, 0, rows)

    @classmethod
    def of_mixed(cls, rows: int, prompts: int, tokens: int, updates: int) -> Counts:
        """A step of `rows` rows with a token each, then `prompts` rows with `tokens` tokens together, all plain."""
        count = rows + prompts
        return cls(count, rows + tokens, count, 0, count, updates)


_PRECISE = ("temperatures", "top_p", "min_p")
"""Inputs in the sampler's precision, which come first, so that they are aligned."""

_WIDE = ("sampled", "picked", "kept", "scored", "following", "ids", "positions", "slots", "row_slots", "begun", "cells")
"""Inputs that the device reads as int64, as most of torch's operators require for indices; adjacent, to be widened in one operation."""


class Layout:
    """The offsets of all inputs in the words."""

    def __init__(self, counts: Counts, precision: torch.dtype) -> None:
        self._precision = precision
        self._words = BufferLayout.of(
            temperatures=counts.plain * precision.itemsize // 4,
            top_p=counts.plain * precision.itemsize // 4,
            min_p=counts.plain * precision.itemsize // 4,
            top_k=counts.plain,
            uniforms=counts.plain,
            sampled=counts.plain,
            picked=counts.picked,
            kept=counts.kept,
            scored=counts.scored,
            following=counts.scored,
            ids=counts.tokens,
            positions=counts.tokens,
            slots=counts.tokens,
            row_slots=counts.rows,
            begun=counts.rows,
            cells=counts.updates,
            blocks=counts.updates,
            lengths=counts.rows,
            cu_seqlens=counts.rows + 1,
        )
        self.words = self._words.count

    def host(self, words: Tensor) -> dict[str, np.ndarray]:
        """Views of host memory, to be filled; int32 except temperatures, top-p, min-p and uniforms."""
        views = self._words.host(words)
        for name in _PRECISE:
            views[name] = views[name].view(np.float64 if self._precision is torch.float64 else np.float32)
        views["uniforms"] = views["uniforms"].view(np.float32)
        return views

    def device(self, words: Tensor) -> StepInputs:
        """The inputs as views of words on the device."""
        places = self._words.places
        first = places[_WIDE[0]].start
        wide = words[first : places[_WIDE[-1]].stop].long()
        views: dict[str, Tensor] = {}
        for name, place in places.items():
            views[name] = wide[place.start - first : place.stop - first] if name in _WIDE else words[place]
        for name in _PRECISE:
            views[name] = views[name].view(self._precision)
        views["uniforms"] = views["uniforms"].view(torch.float32)
        filters = RowFilters(**{name: views.pop(name) for name in NEUTRAL})
        return StepInputs(filters=filters, **views)
