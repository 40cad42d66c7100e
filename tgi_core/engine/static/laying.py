"""The inputs of one program in one buffer of int32 words: filled on the host, copied once, read in the program as views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.ahead.step_layout import StepLayout
from tgi_core.engine.static.grid import HeadShape, Shape
from tgi_core.engine.static.splitting import Call, Part


@dataclass(frozen=True, slots=True)
class Words:
    """The offsets of inputs by name."""

    places: Mapping[str, tuple[int, int]]
    count: int

    @classmethod
    def of(cls, **sizes: int) -> Words:
        """Inputs of these sizes, one after another."""
        ends = np.cumsum(list(sizes.values())).tolist()
        return cls({name: (end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}, ends[-1])

    def host(self, words: np.ndarray) -> dict[str, np.ndarray]:
        """Views to fill."""
        return {name: words[start:end] for name, (start, end) in self.places.items()}

    def device(self, words: Tensor) -> dict[str, Tensor]:
        """The inputs, int64."""
        wide = words.long()
        return {name: wide[start:end] for name, (start, end) in self.places.items()}


def body_words(shape: Shape, flat: bool) -> Words:
    """What a program of this shape reads."""
    tokens = {"ids": shape.tokens, "positions": shape.tokens, "slots": shape.tokens, "begun": shape.rows}
    if flat and shape.take == 1:
        return Words.of(**tokens, blocks=shape.blocks, owners=shape.blocks, offsets=shape.blocks)
    return Words.of(**tokens, blocks=shape.rows * shape.blocks)


def head_words(shape: HeadShape) -> Words:
    """What a program of logits reads: flat tokens, and the row slots that get what is sampled."""
    return Words.of(kept=shape.kept, sampled=shape.kept)


def lay_nothing(shape: Shape, into: Mapping[str, np.ndarray]) -> None:
    """A body's inputs with nothing but padding, which writes to no block and reads the null block."""
    for name, part in into.items():
        part[:] = {"slots": -1, "owners": shape.rows}.get(name, 0)


def lay_body(call: Call, step: StepLayout, row_slots: RowSlots, block_size: int, into: Mapping[str, np.ndarray]) -> None:
    """A body's inputs for parts of a step."""
    lay_nothing(call.shape, into)
    slots = np.array([step.row_slots[part.row] for part in call.parts])
    starts = np.array([part.start for part in call.parts])
    takes = np.array([part.take for part in call.parts])
    ends, tables = starts + takes, row_slots.tables[slots]
    owners = np.repeat(np.arange(len(slots)), takes)
    positions = np.repeat(starts, takes) + np.arange(takes.sum()) - np.repeat(np.cumsum(takes) - takes, takes)
    into["ids"][: len(positions)] = [token for part in call.parts for token in _ids(part, step)]
    into["positions"][: len(positions)] = positions
    into["slots"][: len(positions)] = tables[owners, positions // block_size] * block_size + positions % block_size
    last = ends // block_size
    begins = (ends % block_size != 0) & (starts <= last * block_size)
    into["begun"][: len(slots)] = np.where(begins, tables[np.arange(len(slots)), np.minimum(last, row_slots.width - 1)], 0)
    _lay_blocks(call.shape, tables, starts, -(-ends // block_size), block_size, into)


def _lay_blocks(
    shape: Shape, tables: np.ndarray, starts: np.ndarray, counts: np.ndarray, block_size: int, into: Mapping[str, np.ndarray]
) -> None:
    """The first `counts` blocks of each row, as far as it has reached: later ones may hold what another row left."""
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    blocks = tables[rows, places]
    if "owners" in into:
        into["blocks"][: len(rows)] = blocks
        into["owners"][: len(rows)] = rows
        into["offsets"][: len(rows)] = starts[rows] - places * block_size
    else:
        into["blocks"].reshape(shape.rows, shape.blocks)[rows, places] = blocks


def _ids(part: Part, step: StepLayout) -> list[int]:
    """The tokens of a part; the newest one, which the host may not have read yet, is given by its row slot."""
    tokens = step.order[part.row].row.tokens
    if part.start < len(tokens):
        return tokens[part.start : part.start + part.take]
    return [-1 - step.row_slots[part.row]]


def ids_of(ids: Tensor, newest: Tensor) -> Tensor:
    """Input ids [tokens], with those that are given by row slots from the newest tokens [row slots]."""
    return torch.where(ids < 0, newest.index_select(0, (-1 - ids).clamp_min(0)), ids)
