"""A step's rows, flattened for the native call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.runner import ScoredPrompts


@dataclass(frozen=True, slots=True)
class FlatStep:
    """A step as the native call takes it. `rows` [rows, 3] holds first token, count and past; `tables` [rows, blocks] each row's blocks, by
    cache group; `wanted` are the tokens that need hidden states.

    Among those, `yielding` are the places of tokens after which one is sampled, and `scored` those that score prompts. By request, `last`
    has the place of a row's newest token, which its drafts follow, and `first` is a row's first token.
    """

    ids: np.ndarray
    rows: np.ndarray
    tables: tuple[np.ndarray, ...]
    wanted: np.ndarray
    yielding: list[int]
    last: dict[int, int]
    first: dict[int, int]
    scored: ScoredPrompts


def flatten(row_inputs: Sequence[RowInput], block_size: int, groups: int = 1, every: bool = False) -> FlatStep:
    """One step over some cache groups, row by row in the order of the inputs; with `every`, all tokens are wanted."""
    ids: list[int] = []
    rows: list[tuple[int, int, int]] = []
    wanted, yielding, scored = list[int](), list[int](), ScoredPrompts()
    last, firsts = dict[int, int](), dict[int, int]()
    widest = max(-(-(row_input.start + row_input.take) // block_size) for row_input in row_inputs)
    tables = tuple(np.zeros((len(row_inputs), widest), np.int32) for _ in range(groups))
    for i, row_input in enumerate(row_inputs):
        first, end = len(ids), row_input.start + row_input.take
        used = -(-end // block_size)
        for table, blocks in zip(tables, row_input.row.tables, strict=False):
            table[i, :used] = blocks[:used]
        ids += row_input.tokens
        rows.append((first, row_input.take, row_input.start))
        firsts[row_input.row.request.id] = first
        count, newest = scored.add(row_input, len(wanted)), len(ids) - 1 - len(row_input.drafts)
        wanted += range(first, newest if every else first + count)
        if row_input.yields:
            last[row_input.row.request.id] = len(wanted)
            yielding += range(len(wanted), len(wanted) + len(ids) - newest)
        if row_input.yields or every:
            wanted += range(newest, len(ids))
    flat_rows, flat_wanted = np.array(rows, np.int32), np.array(wanted, np.int32)
    return FlatStep(np.array(ids, np.int64), flat_rows, tables, flat_wanted, yielding, last, firsts, scored)
