"""The persistent batch: while the same rows decode, most of a step's inputs stay as they were, and are not prepared again.

Row slots, filters and input ids change when rows come and go; from one decode step to the next, only positions do, and the tables of rows
that get a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.ahead.inputs import Layout
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.ahead.sampling import UniformsAhead
from tgi_core.engine.ahead.step_layout import StepLayout, clear_updates, extend_rows, fill_decode, fill_fixed


class PersistentBatch:
    """The rows of the last step, if all of them decoded and are sampled on the device, with the words of its inputs."""

    def __init__(self, row_slots: RowSlots, block_size: int) -> None:
        self._row_slots, self._block_size = row_slots, block_size
        self._step: StepLayout | None = None
        self._rows: list[RowState] = []
        self._layout: Layout | None = None
        self._words = torch.zeros(0, dtype=torch.int32)
        self._uniforms = UniformsAhead()

    def next(self, row_inputs: Sequence[RowInput]) -> StepLayout | None:
        """The layout of a step in which the batch decodes on; None if it has other rows."""
        last = self._step
        if last is None or [row_input.row for row_input in row_inputs] != self._rows:
            return None
        starts = np.array([row_input.start for row_input in row_inputs], np.int64)
        takes = [row_input.take for row_input in row_inputs]
        if takes.count(1) < len(takes) or not np.array_equal(starts, last.starts + 1):
            return None
        order = list(row_inputs)
        plain = [order[row] for row in last.plain_rows] if last.processed else order
        processed = [order[row] for row in last.processed_rows]
        step = replace(last, order=order, plain=plain, processed=processed, starts=starts, cells=[], blocks=[])
        extend_rows(step, self._row_slots, self._block_size)
        return step

    def keep(self, step: StepLayout) -> None:
        """Remember a step that was enqueued, once it is noted where its tokens are."""
        if self._continues(step):
            self._step = step
            return
        self.forget()
        if (
            len(step.plain) + len(step.processed) == len(step.order)
            and step.decodes
            and self._row_slots.newest_on_device[step.row_slots].all()
        ):
            self._step, self._rows = step, [row_input.row for row_input in step.order]

    def forget(self) -> None:
        """Prepare the next step from scratch."""
        self._step = self._layout = None

    def fill(self, step: StepLayout, layout: Layout, words: Tensor, rows: int) -> np.ndarray:
        """Write a step to the words of a captured one with so many `rows` of one token; see `fill_fixed`."""
        into = layout.host(words)
        if not self._continues(step):
            return fill_fixed(step, self._row_slots, into, self._block_size, rows)
        if self._layout is layout:
            words.copy_(self._words)
            fill_decode(step, self._row_slots, into, self._block_size, self._drawn(step) if step.draws else None)
            return np.arange(len(step.order))
        places = fill_fixed(step, self._row_slots, into, self._block_size, rows)
        self._layout, self._words = layout, words.clone()
        clear_updates(self._row_slots, layout.host(self._words))
        return places

    def _continues(self, step: StepLayout) -> bool:
        """Whether a step was made by `next`."""
        return self._step is not None and step.row_slots is self._step.row_slots

    def _drawn(self, step: StepLayout) -> np.ndarray:
        """float32 [rows]: the uniform numbers of the tokens that a step samples, 0 for an argmax."""
        row_slots, taken = self._row_slots, step.row_slots
        return self._uniforms.next(row_slots.seeds[taken], step.starts + 1, row_slots.temperatures[taken])
