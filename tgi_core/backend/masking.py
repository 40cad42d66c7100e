"""Mask requests, shared by backends that sample on the host."""

from __future__ import annotations

from tgi_core.backend.callbacks import MaskRow, MaskSource
from tgi_core.backend.ledger import LiveRow


def mask_row(row: LiveRow) -> MaskRow:
    """Mask request for a row of a session that samples one token per step: the row's newest sampled token, if any."""
    made = row.tokens[-1:] if len(row.tokens) > len(row.request.tokens) else []
    return MaskRow(row.request.id, tuple(made))


def allowed_tokens(source: MaskSource | None, row: LiveRow, vocab_size: int) -> list[int] | None:
    """Token ids that a row's mask allows, in ascending order; None for a row without a mask."""
    if source is None or not row.request.masked:
        return None
    bits = source.fill((mask_row(row),))
    return [id for id in range(vocab_size) if bits[id >> 3] >> (id & 7) & 1]
