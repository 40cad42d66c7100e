"""Rows that rank 0 samples for all ranks of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tgi_core.backend import BackendBug, Row, RowFault, RowFaultKind
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.collectives import Collectives

_NO_TOKEN, _FAULT, _NO_STEP = -1, -2, -3
"""Broadcast instead of a token: the row has none at this place, the row failed here, or rank 0 could not sample at all."""


def shared_rows(
    collectives: Collectives, row_inputs: Sequence[RowInput], sample: Callable[[], tuple[Row, ...]]
) -> tuple[Row, ...]:
    """The rows that `sample` returns on rank 0, which alone calls it; other ranks get the tokens. Raises BackendBug there if it raises."""
    yielding = [row_input for row_input in row_inputs if row_input.yields]
    width = 1 + max((len(row_input.drafts) for row_input in yielding), default=0)
    if not collectives.leads:
        return _followed(row_inputs, _told(collectives, [[]] * len(yielding), width))
    try:
        rows = sample()
    except BaseException:
        _told(collectives, [[_NO_STEP]] * len(yielding), width)
        raise
    made = {row.request_id: [*row.tokens, *([] if row.fault is None else [_FAULT])] for row in rows}
    _told(collectives, [made[row_input.row.request.id] for row_input in yielding], width)
    return rows


def _told(collectives: Collectives, made: list[list[int]], width: int) -> list[list[int]]:
    """Rank 0's tokens for each row that yields, at most `width`."""
    flat = [value for row in made for value in (row + [_NO_TOKEN] * width)[:width]]
    told = collectives.tell(flat) if flat else []
    return [told[at : at + width] for at in range(0, len(told), width)]


def _followed(row_inputs: Sequence[RowInput], told: list[list[int]]) -> tuple[Row, ...]:
    """Rows with the tokens from rank 0, for those that yield."""
    if [_NO_STEP] in [row[:1] for row in told]:
        raise BackendBug("rank 0 could not sample")
    given, rows = iter(told), []
    for row_input in row_inputs:
        made = next(given) if row_input.yields else []
        fault = RowFault(RowFaultKind.SAMPLER, "it failed on rank 0") if _FAULT in made else None
        tokens = tuple(token for token in made if token >= 0)
        rows.append(Row(row_input.row.request.id, tokens, drafted=len(row_input.drafts), fault=fault))
    return tuple(rows)
