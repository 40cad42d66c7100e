"""Host-side bounds of a step, such as its longest row, and the attention metadata built from them and the inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.ahead.inputs import StepInputs
from tgi_core.engine.attention.metadata import DecodeRows, PrefillRow, StepArrays, StepMetadata


@dataclass(frozen=True, slots=True)
class StepBounds:
    """Host values of a step. Those of a captured step are valid for every step that replays it.

    `width` is how many blocks the tables show. `equal` says that the single tokens' rows are all of one length, `begins` that some row
    begins a block, `every` that the logits of all tokens are wanted, `fixed` that the bounds hold for every step of its shape.
    """

    order: list[RowInput]
    starts: np.ndarray
    takes: np.ndarray
    tables: np.ndarray
    decode_rows: int
    width: int
    max_length: int
    equal: bool
    begins: bool
    every: bool
    block_size: int
    fixed: bool

    @classmethod
    def of_decode(cls, rows: int, width: int, block_size: int) -> StepBounds:
        """Bounds of any decode step of at most `rows` rows."""
        none = np.zeros(rows, np.int64)
        tables = np.zeros((rows, width), np.int32)
        return cls([], none, none + 1, tables, rows, width, width * block_size, False, True, True, block_size, True)

    @classmethod
    def of_mixed(cls, rows: int, prompts: int, tokens: int, width: int, block_size: int) -> StepBounds:
        """Bounds of any step of at most `rows` rows with a token each, and at most `prompts` others with `tokens` tokens together."""
        count = rows + prompts
        takes = np.array([1] * rows + [tokens] * prompts, np.int64)
        tables = np.zeros((count, width), np.int32)
        return cls([], 0 * takes, takes, tables, rows, width, width * block_size, False, True, False, block_size, True)

    def metadata(self, inputs: StepInputs, ids: Tensor, tables: Tensor) -> StepMetadata:
        """The step with its tensors; `tables` int32 [rows, width]."""
        ends = np.cumsum(self.takes)
        arrays = StepArrays(
            cu_seqlens=inputs.cu_seqlens,
            lengths=inputs.lengths,
            tables=tables,
            decode_rows=self.decode_rows,
            max_query=int(self.takes.max()),
            max_length=self.max_length,
        )
        return StepMetadata(
            order=self.order,
            input_ids=ids,
            positions=inputs.positions,
            slots=inputs.slots,
            begun=inputs.begun if self.begins else None,
            cu_seqlens=np.concatenate(([0], ends)),
            tables=self.tables,
            decode=self._decode(inputs, tables),
            prefill=tuple(self._prefill(row, int(ends[row]), tables) for row in range(self.decode_rows, len(self.takes))),
            arrays_built=arrays,
        )

    def _decode(self, inputs: StepInputs, tables: Tensor) -> DecodeRows | None:
        if not self.decode_rows:
            return None
        lengths = inputs.lengths[: self.decode_rows]
        longest = self.max_length if self.fixed else int((self.starts + self.takes)[: self.decode_rows].max())
        if self.fixed:
            lengths = lengths.clamp_min(1)  # a padding row attends to the first slot of the null block, which is zero
        blocks = -(-longest // self.block_size)
        return DecodeRows(tables[: self.decode_rows, :blocks], lengths, longest, self.equal)

    def _prefill(self, row: int, end: int, tables: Tensor) -> PrefillRow:
        start, take = int(self.starts[row]), int(self.takes[row])
        table = tables[row, : -(-(start + take) // self.block_size)]
        return PrefillRow(end - take, end, start, table)
