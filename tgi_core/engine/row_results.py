"""From a step's logits to the contract's rows, with the host's sampler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgi_core.backend import MaskSource, OutOfMemory, Row
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.backend.drafts import with_next
from tgi_core.engine.failures import TORCH_ERRORS, translated
from tgi_core.engine.masks import allowed_tokens
from tgi_core.engine.runner import StepLogits, prompt_positions
from tgi_core.engine.sampler import PlainSampler, Sampled, sample, sample_each

_log = logging.getLogger(__name__)


def row_results(row_inputs: Sequence[RowInput], logits: StepLogits, masks: MaskSource | None) -> tuple[Row, ...]:
    """A row for every input, in order; the inputs are not changed. Requests the masks of rows that have one."""
    rows = _newest(row_inputs, logits, masks)
    return tuple(_verified(row_inputs, rows, logits, masks)) if logits.drafts else tuple(rows)


def _verified(row_inputs: Sequence[RowInput], rows: list[Row], logits: StepLogits, masks: MaskSource | None) -> list[Row]:
    """Add to rows whose token is their first draft the tokens at the positions of their drafts, up to the first that is not the draft.

    One round per position, over all rows that have got that far. A row is sampled as if it had its tokens from earlier steps.
    """
    rows = [
        replace(row, drafted=len(row_input.drafts)) if row_input.drafts else row
        for row_input, row in zip(row_inputs, rows, strict=True)
    ]
    going = [
        _Accepted(place, row_input.drafts, replace(row_input.row, tokens=[*row_input.row.tokens, *row.tokens]))
        for place, (row_input, row) in enumerate(zip(row_inputs, rows, strict=True))
        if row_input.drafts and row.tokens == row_input.drafts[:1]
    ]
    done = 0
    while going:
        scores = torch.stack([logits.drafts[each.row.request.id][done] for each in going])
        sampled = _sampled(scores, [each.row for each in going], masks, logits.plain_sampler)
        done, left = done + 1, list[_Accepted]()
        for index, each in enumerate(going):
            made = sampled.result(index, each.row, ())
            rows[each.place] = with_next(rows[each.place], made)
            if made.tokens and made.tokens == each.drafts[done : done + 1]:
                each.row.tokens.extend(made.tokens)
                left.append(each)
        going = left
    return rows


@dataclass(slots=True)
class _Accepted:
    """A row whose drafts were accepted so far: its place among the rows, its drafts, and a copy of it with the tokens it made."""

    place: int
    drafts: tuple[int, ...]
    row: RowState


def _sampled(scores: Tensor, rows: Sequence[RowState], masks: MaskSource | None, plain_sampler: PlainSampler | None) -> Sampled:
    """A token for each of `rows` by its logits in `scores` [rows, vocabulary], under its mask."""
    masked = masks is not None and any(row.request.masked for row in rows)
    allowed = allowed_tokens(masks, rows, scores.shape).to(scores.device) if masks is not None and masked else None
    try:
        return sample(scores, rows, allowed, plain_sampler)
    except TORCH_ERRORS as error:
        if isinstance(translated(error), OutOfMemory):
            raise
        _log.exception("sampling failed; sampling each row by itself")
        return sample_each(scores, rows, allowed)


def _newest(row_inputs: Sequence[RowInput], logits: StepLogits, masks: MaskSource | None) -> list[Row]:
    """A row for every row input, with the token after its newest one."""
    yielding = [row_input.row for row_input in row_inputs if row_input.yields]
    sampled = _sampled(logits.last, yielding, masks, logits.plain_sampler)
    places = {row.request.id: index for index, row in enumerate(yielding)}
    rows = []
    for row_input in row_inputs:
        prompt = _prompt_logprobs(row_input, logits)
        place = places.get(row_input.row.request.id)
        rows.append(
            Row(row_input.row.request.id, prompt_logprobs=prompt)
            if place is None
            else sampled.result(place, row_input.row, prompt)
        )
    return rows


def _prompt_logprobs(row_input: RowInput, logits: StepLogits) -> tuple[float | None, ...]:
    """The logprobs of the positions run in this step, with the leading None for token 0."""
    if not row_input.row.request.want.prompt_logprobs or row_input.start >= row_input.row.request.prompt_len:
        return ()
    first: tuple[float | None, ...] = (None,) if row_input.start == 0 else ()
    return (*first, *logits.prompt[row_input.row.request.id].tolist()) if prompt_positions(row_input) else first
