"""From a step's logits to the contract's rows, with the host's sampler."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tgi_core.backend import MaskSource, OutOfMemory, Row
from tgi_core.backend.ledger import Work
from tgi_core.engine.failures import TORCH_ERRORS, translated
from tgi_core.engine.masks import allowed_tokens
from tgi_core.engine.runner import StepLogits, prompt_positions
from tgi_core.engine.sampler import sample, sample_each

_log = logging.getLogger(__name__)


def row_results(works: Sequence[Work], logits: StepLogits, masks: MaskSource | None) -> tuple[Row, ...]:
    """A row for every work, in order; the works are not changed. Requests the masks of rows that have one."""
    yielding = [work.row for work in works if work.yields]
    masked = [row.request.masked for row in yielding]
    allowed = allowed_tokens(masks, yielding, logits.last.shape) if masks and any(masked) else None
    if allowed is not None:
        allowed = allowed.to(logits.last.device)
    try:
        sampled = sample(logits.last, yielding, allowed, logits.plain_sampler)
    except TORCH_ERRORS as error:
        if isinstance(translated(error), OutOfMemory):
            raise
        _log.exception("sampling failed; sampling each row by itself")
        sampled = sample_each(logits.last, yielding, allowed)
    places = {row.request.id: index for index, row in enumerate(yielding)}
    rows = []
    for work in works:
        prompt = _prompt_logprobs(work, logits)
        place = places.get(work.row.request.id)
        rows.append(
            Row(work.row.request.id, prompt_logprobs=prompt) if place is None else sampled.result(place, work.row, prompt)
        )
    return tuple(rows)


def _prompt_logprobs(work: Work, logits: StepLogits) -> tuple[float | None, ...]:
    """Those of the positions run in this step, with the leading None of token 0."""
    if not work.row.request.want.prompt_logprobs or work.start >= work.row.request.prompt_len:
        return ()
    first: tuple[float | None, ...] = (None,) if work.start == 0 else ()
    return (*first, *logits.prompt[work.row.request.id].tolist()) if prompt_positions(work) else first
