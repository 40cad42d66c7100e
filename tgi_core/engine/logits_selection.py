"""Which tokens of a flat step need logits, and for which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tgi_core.backend.ledger import Work
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.runner import ScoredPrompts


@dataclass(frozen=True, slots=True)
class Selection:
    """Flat tokens of a step: those `kept` after which a token is sampled, work by work, and those that score prompts.

    By request, `first` is the place among them of its newest token, which its drafts follow.
    """

    kept: list[int]
    first: dict[int, int]
    scored: ScoredPrompts


def selected_tokens(works: Sequence[Work], step: StepMetadata) -> Selection:
    """The tokens whose logits the rows of a step need."""
    ends: dict[int, int] = {}
    scored = ScoredPrompts()
    for work, start, end in zip(step.order, step.cu_seqlens[:-1].tolist(), step.cu_seqlens[1:].tolist(), strict=True):
        ends[work.row.request.id] = end
        scored.add(work, start)
    kept, first = list[int](), dict[int, int]()
    for work in works:
        if work.yields:
            end = ends[work.row.request.id]
            first[work.row.request.id] = len(kept)
            kept += range(end - 1 - len(work.drafts), end)
    return Selection(kept, first, scored)
