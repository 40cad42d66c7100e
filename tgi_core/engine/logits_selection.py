"""Which tokens of a flat step need logits, and for which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tgi_core.backend.ledger import Work
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.runner import ScoredPrompts


@dataclass(frozen=True, slots=True)
class Selection:
    """Flat tokens of a step: `last` of every work that yields, in the order of the works, and those that score prompts."""

    last: list[int]
    scored: ScoredPrompts


def selected_tokens(works: Sequence[Work], step: StepMetadata) -> Selection:
    """The tokens whose logits the rows of a step need."""
    last: dict[int, int] = {}
    scored = ScoredPrompts()
    for work, start, end in zip(step.order, step.cu_seqlens[:-1].tolist(), step.cu_seqlens[1:].tolist(), strict=True):
        last[work.row.request.id] = end - 1
        scored.add(work, start)
    return Selection([last[work.row.request.id] for work in works if work.yields], scored)
