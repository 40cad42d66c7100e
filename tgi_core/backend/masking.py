"""Mask requests, shared by backends that sample on the host."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.backend.callbacks import MaskRow, MaskSource


def mask_row(row: RowState) -> MaskRow:
    """Mask request for a row of a session that samples one token per step: the row's newest sampled token, if any."""
    made = row.tokens[-1:] if len(row.tokens) > len(row.request.tokens) else []
    return MaskRow(row.request.id, tuple(made))


def allowed_by_request(source: MaskSource | None, row_inputs: Sequence[RowInput], vocab_size: int) -> dict[int, list[int]]:
    """Ids that the masks of a step allow, in rising order, by request id: one `fill` for all of its masked rows that are about to make
    a token. Other rows are not in it."""
    rows = [row_input.row for row_input in row_inputs if row_input.yields and row_input.row.request.masked]
    if source is None or not rows:
        return {}
    bits, stride = source.fill(tuple(map(mask_row, rows))), 4 * -(-vocab_size // 32)
    return {row.request.id: _ids(bits[place * stride : (place + 1) * stride], vocab_size) for place, row in enumerate(rows)}


def allowed_tokens(source: MaskSource | None, row: RowState, vocab_size: int) -> list[int] | None:
    """Ids that the mask of one row allows; None for a row without a mask."""
    if source is None or not row.request.masked:
        return None
    return _ids(source.fill((mask_row(row),)), vocab_size)


def _ids(bits: bytes, vocab_size: int) -> list[int]:
    return [id for id in range(vocab_size) if bits[id >> 3] >> (id & 7) & 1]
