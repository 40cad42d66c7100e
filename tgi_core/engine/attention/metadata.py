"""The metadata of a step for attention, built once on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tgi_core.backend import InvalidRequest
from tgi_core.backend.batch_tracker import RowInput


class FlatTokens(Protocol):
    """The flat tokens of a step, int64 [tokens] each."""

    @property
    def input_ids(self) -> Tensor:
        """The tokens."""

    @property
    def positions(self) -> Tensor:
        """Their positions in their rows."""

    @property
    def slots(self) -> Tensor:
        """Their slots in the cache, −1 for those that are not written."""

    @property
    def begun(self) -> Tensor | None:
        """Blocks that the step begins but does not fill, if there are any."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The rows that run one token: `tables` [rows, blocks] padded with the null block, `lengths` [rows] positions after the step.

    `equal` says that all lengths are the same, so that no position needs masking.
    """

    tables: Tensor
    lengths: Tensor
    max_length: int
    equal: bool

    @property
    def count(self) -> int:
        """The number of rows; they run the first flat tokens of the step."""
        return self.tables.shape[0]


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """A row that runs flat tokens start…end-1 after `past` positions in the cache; `table` [blocks] covers them all."""

    start: int
    end: int
    past: int
    table: Tensor


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step as kernels read it: int32 tensors on the device, and bounds that the host knows without synchronizing.

    Row i runs the flat tokens cu_seqlens[i]…cu_seqlens[i + 1] − 1, which are the last of its `lengths[i]` positions. The first
    `decode_rows` rows run one token each. A row of length 0 pads a step of fixed shape: it attends to nothing and yields zeros.
    """

    cu_seqlens: Tensor
    """[rows + 1]."""
    lengths: Tensor
    """[rows], positions after the step."""
    tables: Tensor
    """[rows, blocks], padded with the null block."""
    decode_rows: int
    max_query: int
    """Maximum number of tokens of a row."""
    max_length: int
    """Length of the longest row."""


@dataclass(slots=True)
class StepMetadata:
    """One ragged step. `order` lists the work in the order of the flat tokens: decode rows first.

    `slots` [tokens] are the tokens' slots in the cache, `begun` the blocks that the step begins but does not fill. `tables` [rows,
    blocks] are the blocks of all rows, padded with the null block. Providers cache in `shared` what their layers share within the step,
    plain torch in `masks`. `windowed` is the same step with the blocks of layers with a window, if those have a cache group of their
    own. `spans` has, by the first flat token of a prefill row, the positions start…end − 1 of images whose tokens see each other, and
    `prompts` the length of the row's prompt if its tokens do, also those that a window hides; only providers that say `sees_ahead` know
    them.
    """

    order: list[RowInput]
    input_ids: Tensor
    positions: Tensor
    slots: Tensor
    begun: Tensor | None
    cu_seqlens: np.ndarray
    tables: np.ndarray
    decode: DecodeRows | None
    prefill: tuple[PrefillRow, ...]
    masks: dict[object, Tensor | None] = field(default_factory=dict)
    shared: dict[str, tuple[np.ndarray, ...]] = field(default_factory=dict)
    arrays_built: StepArrays | None = None
    windowed: StepMetadata | None = None
    spans: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    prompts: dict[int, int] = field(default_factory=dict)

    def arrays(self) -> StepArrays:
        """The step as kernels read it; copied to the device once, at the first call."""
        if self.arrays_built is None:
            self.arrays_built = self._build_arrays()
        return self.arrays_built

    def _build_arrays(self) -> StepArrays:
        takes = np.diff(self.cu_seqlens)
        lengths = np.fromiter((row_input.start + row_input.take for row_input in self.order), np.int64, len(self.order))
        rows, width = self.tables.shape
        packed = torch.from_numpy(np.concatenate([self.cu_seqlens, lengths, self.tables.ravel()]).astype(np.int32))
        on_device = packed.to(self.slots.device)
        return StepArrays(
            cu_seqlens=on_device[: rows + 1],
            lengths=on_device[rows + 1 : 2 * rows + 1],
            tables=on_device[2 * rows + 1 :].view(rows, width),
            decode_rows=self.decode.count if self.decode is not None else 0,
            max_query=int(takes.max()),
            max_length=int(lengths.max()),
        )


def build(
    row_inputs: Sequence[RowInput], block_size: int, device: torch.device, windows: tuple[int | None, ...] = (None,)
) -> StepMetadata:
    """The metadata of a step. `windows` are those of the cache groups: one, or that of all positions and one with a window."""
    order = [row_input for row_input in row_inputs if row_input.take == 1] + [
        row_input for row_input in row_inputs if row_input.take > 1
    ]
    num_decode = sum(row_input.take == 1 for row_input in order)
    takes = np.fromiter((row_input.take for row_input in order), np.int64, len(order))
    starts = np.fromiter((row_input.start for row_input in order), np.int64, len(order))
    cu_seqlens = np.concatenate(([0], np.cumsum(takes)))
    positions = np.arange(cu_seqlens[-1]) + np.repeat(starts - cu_seqlens[:-1], takes)
    ids = np.concatenate([np.asarray(row_input.tokens, np.int64) for row_input in order])
    ends, given_ids, given_positions = starts + takes, torch.from_numpy(ids).to(device), torch.from_numpy(positions).to(device)
    spans: dict[int, tuple[tuple[int, int], ...]] = {}
    prompts: dict[int, int] = {}

    def in_group(group: int, windowed: StepMetadata | None = None) -> StepMetadata:
        tables = padded_tables(order, block_size, group, windows[group])
        blocks = tables[np.repeat(np.arange(len(order)), takes), positions // block_size]
        return StepMetadata(
            order=order,
            input_ids=given_ids,
            positions=given_positions,
            slots=torch.from_numpy(blocks * block_size + positions % block_size).to(device),
            begun=_begun(tables, starts, ends, block_size, device),
            cu_seqlens=cu_seqlens,
            tables=tables,
            decode=_decode_rows(tables[:num_decode], ends[:num_decode], block_size, device),
            prefill=tuple(
                PrefillRow(
                    start=int(cu_seqlens[i]),
                    end=int(cu_seqlens[i + 1]),
                    past=int(starts[i]),
                    table=torch.from_numpy(tables[i, : -(-int(ends[i]) // block_size)]).to(device),
                )
                for i in range(num_decode, len(order))
            ),
            windowed=windowed,
            spans=spans,
            prompts=prompts,
        )

    return in_group(0, in_group(1) if len(windows) > 1 else None)


def see_prompts(step: StepMetadata) -> None:
    """Let tokens of each prompt in a step see each other. Raises InvalidRequest if the step ends inside one."""
    for row_input, first in zip(step.order, step.cu_seqlens, strict=False):
        request = row_input.row.request
        if row_input.start < request.prompt_len:
            if row_input.start + row_input.take < request.prompt_len:
                why = f"request {request.id}: a step cuts its prompt, whose tokens see each other"
                raise InvalidRequest(why, request_ids=(request.id,))
            step.prompts[int(first)] = request.prompt_len


def padded_tables(order: Sequence[RowInput], block_size: int, group: int = 0, window: int | None = None) -> np.ndarray:
    """[rows, blocks] of block ids in a cache group, up to the one that each row has reached. Blocks that a window hides from the step may
    be other rows': the null block stands for them."""
    used = [-(-(row_input.start + row_input.take) // block_size) for row_input in order]
    tables = np.zeros((len(order), max(used)), np.int64)
    for i, (row_input, count) in enumerate(zip(order, used, strict=True)):
        first = 0 if window is None else max(0, row_input.start - window + 1) // block_size
        tables[i, first:count] = row_input.row.tables[group][first:count]
    return tables


def _begun(tables: np.ndarray, starts: np.ndarray, ends: np.ndarray, block_size: int, device: torch.device) -> Tensor | None:
    """The last block of each row that begins it in this step but doesn't fill it."""
    last = ends // block_size
    rows = np.flatnonzero((ends % block_size != 0) & (starts <= last * block_size))
    return torch.from_numpy(tables[rows, last[rows]]).to(device) if rows.size else None


def _decode_rows(tables: np.ndarray, lengths: np.ndarray, block_size: int, device: torch.device) -> DecodeRows | None:
    if not len(lengths):
        return None
    longest = int(lengths.max())
    tables = np.ascontiguousarray(tables[:, : -(-longest // block_size)])
    return DecodeRows(
        torch.from_numpy(tables).to(device), torch.from_numpy(lengths).to(device), longest, bool((lengths == longest).all())
    )
