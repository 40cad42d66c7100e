"""Which logits of a flat step are needed, and for which rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from tgi_core.backend.ledger import Work
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.runner import StepLogits, prompt_positions


def wanted_positions(step: StepMetadata) -> np.ndarray:
    """[tokens] bool: the last token of every row that yields, and the prompt's tokens if its logprobs are requested."""
    keep = np.zeros(step.cu_seqlens[-1], bool)
    for i, work in enumerate(step.order):
        start, end = step.cu_seqlens[i], step.cu_seqlens[i + 1]
        keep[start : start + prompt_positions(work)] = True
        keep[end - 1] |= work.yields
    return keep


def split_logits(works: Sequence[Work], step: StepMetadata, keep: np.ndarray, logits: Tensor) -> StepLogits:
    """The logits of the kept positions, in the order of the works."""
    place = np.cumsum(keep) - 1
    last: dict[int, int] = {}
    prompt: dict[int, Tensor] = {}
    for i, work in enumerate(step.order):
        if work.yields:
            last[work.row.request.id] = int(place[step.cu_seqlens[i + 1] - 1])
        count = prompt_positions(work)
        if count:
            first = int(place[step.cu_seqlens[i]])
            prompt[work.row.request.id] = logits[first : first + count]
    indices = [last[work.row.request.id] for work in works if work.yields]
    return StepLogits(logits if indices == list(range(len(logits))) else logits[indices], prompt)
