"""Which tokens of a flat step need logits, and for which rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tgi_core.backend.ledger import Work
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.runner import following_tokens


@dataclass(frozen=True, slots=True)
class Selection:
    """Flat tokens of a step: `last` of every work that yields, in the order of the works, and `scored`, whose logits give the logprobs of
    the prompt tokens `following` them: those of one request are at its place in `prompts`."""

    last: list[int]
    scored: list[int]
    following: list[int]
    prompts: Mapping[int, slice]


def selected_tokens(works: Sequence[Work], step: StepMetadata) -> Selection:
    """What a step's rows ask for."""
    last: dict[int, int] = {}
    prompts: dict[int, slice] = {}
    scored, following = list[int](), list[int]()
    for work, start, end in zip(step.order, step.cu_seqlens[:-1].tolist(), step.cu_seqlens[1:].tolist(), strict=True):
        last[work.row.request.id] = end - 1
        if asked := following_tokens(work):
            prompts[work.row.request.id] = slice(len(scored), len(scored) + len(asked))
            scored += range(start, start + len(asked))
            following += asked
    return Selection([last[work.row.request.id] for work in works if work.yields], scored, following, prompts)
