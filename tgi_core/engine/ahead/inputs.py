"""The numbers of a step in one row of 32-bit words: filled on the host, copied once, read on the device as views.

Their places follow from a few counts, so that a step of fixed counts can be captured over one piece of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step as the device reads it. All are int64 but for those that say otherwise."""

    temperatures: Tensor
    """[plain], of the sampler's precision: 0 for the argmax."""
    uniforms: Tensor
    """float32 [plain]."""
    sampled: Tensor
    """[plain], the row_slots whose rows get tokens on the device."""
    picked: Tensor
    """[plain or 0], their places among the logits; of length 0 where they are all logits in order."""
    kept: Tensor
    """[kept or 0], the flat tokens whose logits are wanted; of length 0 where those of all are."""
    ids: Tensor
    """[tokens]; −1 − s is the newest token of row_slot s, which the host may not know yet."""
    positions: Tensor
    """[tokens]."""
    slots: Tensor
    """[tokens], −1 for a token that pads."""
    row_slots: Tensor
    """[rows]."""
    begun: Tensor
    """[rows], the block that a row begins and does not fill; the null block for all others."""
    cells: Tensor
    """[updates], flat places in the tables on the device that change."""
    blocks: Tensor
    """int32 [updates], the blocks that come there."""
    lengths: Tensor
    """int32 [rows], positions after the step; 0 for a row that pads."""
    cu_seqlens: Tensor
    """int32 [rows + 1]."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much a step has of everything; `picked` and `kept` are 0 where no choice among logits or tokens is made."""

    rows: int
    tokens: int
    plain: int
    picked: int
    kept: int
    updates: int

    @classmethod
    def of_decode(cls, rows: int) -> Counts:
        """A decode step of so many rows: all of them plain, each with room for one new block."""
        return cls(rows, rows, rows, 0, 0, rows)


_WIDE = ("sampled", "picked", "kept", "ids", "positions", "slots", "row_slots", "begun", "cells")
"""What the device reads as int64, since most of torch's operators index by nothing else; side by side, to be widened at once."""


class Layout:
    """Where everything lies among the words."""

    def __init__(self, counts: Counts, precision: torch.dtype) -> None:
        self._precision = precision
        sizes = {
            "temperatures": counts.plain * precision.itemsize // 4,
            "uniforms": counts.plain,
            "sampled": counts.plain,
            "picked": counts.picked,
            "kept": counts.kept,
            "ids": counts.tokens,
            "positions": counts.tokens,
            "slots": counts.tokens,
            "row_slots": counts.rows,
            "begun": counts.rows,
            "cells": counts.updates,
            "blocks": counts.updates,
            "lengths": counts.rows,
            "cu_seqlens": counts.rows + 1,
        }
        ends = np.cumsum(list(sizes.values())).tolist()
        self._slices = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}
        self.words: int = ends[-1]

    def host(self, words: Tensor) -> dict[str, np.ndarray]:
        """Views of memory on the host, to fill in; all are int32 but temperatures and uniforms."""
        whole = words.numpy()
        views = {name: whole[place] for name, place in self._slices.items()}
        views["temperatures"] = views["temperatures"].view(np.float64 if self._precision is torch.float64 else np.float32)
        views["uniforms"] = views["uniforms"].view(np.float32)
        return views

    def device(self, words: Tensor) -> StepInputs:
        """What those words mean on the device."""
        first = self._slices[_WIDE[0]].start
        wide = words[first : self._slices[_WIDE[-1]].stop].long()
        views: dict[str, Tensor] = {}
        for name, place in self._slices.items():
            views[name] = wide[place.start - first : place.stop - first] if name in _WIDE else words[place]
        views["temperatures"] = views["temperatures"].view(self._precision)
        views["uniforms"] = views["uniforms"].view(torch.float32)
        return StepInputs(**views)
