"""Which tokens of a flat step need logits, and for which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.runner import ScoredPrompts


@dataclass(frozen=True, slots=True)
class Selection:
    """Flat tokens of a step: those `kept` after which a token is sampled, work by work, and those that score prompts.

    By request, `first` is the index among them of its newest token, which its drafts follow.
    """

    kept: list[int]
    first: dict[int, int]
    scored: ScoredPrompts


def selected_tokens(row_inputs: Sequence[RowInput], step: StepMetadata) -> Selection:
    """The tokens whose logits the rows of a step need."""
    ends: dict[int, int] = {}
    scored = ScoredPrompts()
    for row_input, start, end in zip(step.order, step.cu_seqlens[:-1].tolist(), step.cu_seqlens[1:].tolist(), strict=True):
        ends[row_input.row.request.id] = end
        scored.add(row_input, start)
    kept, first = list[int](), dict[int, int]()
    for row_input in row_inputs:
        if row_input.yields:
            end = ends[row_input.row.request.id]
            first[row_input.row.request.id] = len(kept)
            kept += range(end - 1 - len(row_input.drafts), end)
    return Selection(kept, first, scored)
