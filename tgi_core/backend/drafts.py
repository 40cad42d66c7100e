"""Results of rows that run drafts."""

from __future__ import annotations

from dataclasses import replace

from tgi_core.backend.types import Row


def with_next(row: Row, made: Row) -> Row:
    """Return a row's result with what it made at its next position added: a token with what is returned beside it, or a fault."""
    return replace(
        row,
        tokens=row.tokens + made.tokens,
        logprobs=row.logprobs + made.logprobs,
        top=row.top + made.top,
        fault=made.fault,
    )
