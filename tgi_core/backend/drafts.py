"""Verification of drafts on the host: the result of a row that accepts some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tgi_core.backend.batch_tracker import RowInput
from tgi_core.backend.types import Row

Place = TypeVar("Place")


def with_next(row: Row, made: Row) -> Row:
    """Return a row's result extended by that of its next position: a token with what is returned along with it, or a fault."""
    return replace(
        row,
        tokens=row.tokens + made.tokens,
        logprobs=row.logprobs + made.logprobs,
        top=row.top + made.top,
        fault=made.fault,
    )


def verified(row_input: RowInput, places: Sequence[Place], draw: Callable[[RowInput, Place], Row]) -> Row:
    """Return a row's result of a step: what it makes after its newest token, and after each of its drafts up to the first that is wrong.

    `places` are what `draw` needs at the newest token and at each draft, such as logits. `draw` chooses the row's next token there and
    appends it to the row's tokens, as `drawing.drawn` does.
    """
    if not row_input.drafts:
        return draw(row_input, places[0])
    row = Row(row_input.row.request.id, drafted=len(row_input.drafts))
    for place, draft in zip(places, (*row_input.drafts, None), strict=True):
        made = draw(row_input, place)
        row = with_next(row, made)
        if made.tokens != (draft,):
            break
    row_input.row.accept(())  # `draw` has appended its tokens
    return row
