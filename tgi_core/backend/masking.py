"""What backends share in asking for masks."""

from __future__ import annotations

from tgi_core.backend.callbacks import MaskRow, MaskSource
from tgi_core.backend.ledger import LiveRow


def mask_row(row: LiveRow) -> MaskRow:
    """A row as a mask source is to hear of it, for a session that makes one token a step: its newest token, if it has made one."""
    made = row.tokens[-1:] if len(row.tokens) > len(row.request.tokens) else []
    return MaskRow(row.request.id, tuple(made))


def allowed_tokens(source: MaskSource | None, row: LiveRow, vocab_size: int) -> list[int] | None:
    """Ids that the mask of one row allows, in rising order; None for a row without one."""
    if source is None or not row.request.masked:
        return None
    bits = source.fill((mask_row(row),))
    return [id for id in range(vocab_size) if bits[id >> 3] >> (id & 7) & 1]
