"""Temperature, top-k, top-p, min-p and typical-p over many rows, and the draw from what they leave.

Rows without filters draw from the whole vocabulary. For the others only a head of the likeliest tokens is sorted; if a row's filters
need more than the head, its whole vocabulary is sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgi_core.backend import Sampling, SamplingField
from tgi_core.backend.sampling_spec import FILTERS, without

FIELDS = frozenset({SamplingField.MIN_P, SamplingField.TYPICAL_P})
"""Sampling fields that a session with these filters declares."""

HEAD = 256
"""Number of tokens to sort first for top-p and min-p; enough for nearly all real distributions."""


@dataclass(slots=True)
class Candidates:
    """Distributions of rows: `logprobs` [rows, width], minus infinity where dropped; `token_ids` likewise, ascending; None is 0…width-1."""

    logprobs: Tensor
    token_ids: Tensor | None

    def ids(self, row: int) -> Tensor | None:
        """Token ids of one row."""
        return None if self.token_ids is None else self.token_ids[row]

    def rising_ids(self) -> Tensor:
        """Token ids of all rows, in the same shape."""
        if self.token_ids is not None:
            return self.token_ids
        return torch.arange(self.logprobs.shape[-1], device=self.logprobs.device).expand_as(self.logprobs)

    def choose(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Inverse cumulative distribution at `targets` [rows], in token-id order: tokens and their logprobs."""
        totals = self.logprobs.exp().cumsum(-1)
        places = torch.searchsorted(totals, targets.unsqueeze(-1), right=True)
        possible = self.logprobs > -torch.inf
        last = self.logprobs.shape[-1] - 1 - possible.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
        places = torch.minimum(places, last)
        logprobs = self.logprobs.gather(-1, places).squeeze(-1)
        tokens = places if self.token_ids is None else self.token_ids.gather(-1, places)
        return tokens.squeeze(-1), logprobs


def exact(scores: Tensor) -> Tensor:
    """Scores in double precision; on the host if the device may lack it, as many Intel GPUs do."""
    return (scores.cpu() if scores.device.type == "xpu" else scores).double()


def warp(scores: Tensor, sampling: Sequence[Sampling]) -> Candidates:
    """Distributions of rows that are drawn from: `scores` [rows, vocabulary] in double precision, after penalties and mask."""
    vocab = scores.shape[-1]
    scores = scores / _column([s.temperature for s in sampling], scores)
    cut = [i for i, s in enumerate(sampling) if is_cut(s, vocab)]
    if not cut:
        return Candidates(scores.log_softmax(-1), None)
    if len(cut) == len(sampling):
        return _filter_rows(scores, sampling)
    filtered = _filter_rows(scores[cut], [sampling[i] for i in cut])
    logprobs = scores.log_softmax(-1)
    logprobs[cut] = torch.full_like(scores[cut], -torch.inf).scatter_(-1, filtered.rising_ids(), filtered.logprobs)
    return Candidates(logprobs, None)


def is_cut(sampling: Sampling, vocab: int) -> bool:
    """Whether filters may drop tokens. A top-k of the whole vocabulary is off."""
    if without(FILTERS, sampling):
        return False
    return sampling.top_k < vocab or not without(FILTERS, replace(sampling, top_k=0))


def _filter_rows(scores: Tensor, sampling: Sequence[Sampling]) -> Candidates:
    """Filter rows. Each is computed in the width that its own filters need, so that its last bits do not depend on other rows."""
    vocab = scores.shape[-1]
    widths = [_head(s, vocab) for s in sampling]
    parts: list[tuple[list[int], Candidates]] = []
    for width in sorted(set(widths)):
        parts += _of_width(scores, sampling, [i for i, each in enumerate(widths) if each == width], width)
    if len(parts) == 1:
        return parts[0][1]
    logprobs = torch.full_like(scores, -torch.inf)
    for rows, found in parts:
        logprobs[rows] = logprobs[rows].scatter_(-1, found.rising_ids(), found.logprobs)
    return Candidates(logprobs, None)


def _of_width(scores: Tensor, sampling: Sequence[Sampling], rows: list[int], width: int) -> list[tuple[list[int], Candidates]]:
    """Filter some rows within a head of the vocabulary, and those that need more within all of it; with their indices."""
    part, chosen = scores[rows], [sampling[i] for i in rows]
    if width == scores.shape[-1]:
        return [(rows, _filter(part, *part.sort(descending=True, stable=True), chosen)[0])]
    found, short = _filter(part, *_likeliest(part, width), chosen)
    if not any(short):
        return [(rows, found)]
    whole = _of_width(scores, sampling, [i for i, is_short in zip(rows, short, strict=True) if is_short], scores.shape[-1])
    fit = [place for place, is_short in enumerate(short) if not is_short]
    if not fit:
        return whole
    return [([rows[place] for place in fit], Candidates(found.logprobs[fit], found.rising_ids()[fit])), *whole]


def _head(sampling: Sampling, vocab: int) -> int:
    """Number of the likeliest tokens that a row's filters need."""
    if 0 < sampling.top_k < vocab:
        return sampling.top_k
    return vocab if sampling.typical_p < 1 else min(HEAD, vocab)


def _likeliest(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Values and token ids of the `width` likeliest tokens, ties by token id."""
    ids = scores.topk(width, sorted=False).indices.sort(-1).values
    values, order = scores.gather(-1, ids).sort(descending=True, stable=True)
    return values, ids.gather(-1, order)


def _filter(scores: Tensor, values: Tensor, ids: Tensor, sampling: Sequence[Sampling]) -> tuple[Candidates, list[bool]]:
    """Apply top-k, top-p, min-p and typical-p to sorted heads [rows, width]; and by row, whether the head does not hold all that it
    keeps."""
    width, vocab = values.shape[-1], scores.shape[-1]
    limits = _column([s.top_k if 0 < s.top_k < vocab else vocab for s in sampling], scores)
    mass = _column([s.top_p for s in sampling], scores)
    kept = (torch.arange(width, device=scores.device) < limits) & (values > -torch.inf)
    totals = torch.where(limits < vocab, total(values.masked_fill(~kept, -torch.inf)), total(scores))
    sums = (values - totals).exp().masked_fill(~kept, 0).cumsum(-1)
    likely = torch.ones_like(kept)
    if any(s.min_p > 0 for s in sampling):
        likely = (values - values[:, :1]).exp() >= _column([s.min_p for s in sampling], scores)
    short = [False] * len(sampling)
    if width < vocab:
        last = values[:, -1:]
        tied = ((scores >= last).sum(-1, keepdim=True) > width) & (last > -torch.inf)
        open_ended = (limits == vocab) & ((sums[:, -1:] < mass) | (mass >= 1))
        short = (likely[:, -1:] & (tied | open_ended)).flatten().tolist()
    kept &= _before(sums, mass) & likely
    by_id = ids.sort(-1)
    values, kept = values.gather(-1, by_id.indices), kept.gather(-1, by_id.indices)
    if any(s.typical_p < 1 for s in sampling):
        kept = _typical(values, kept, _column([s.typical_p for s in sampling], scores))
    return Candidates(values.masked_fill(~kept, -torch.inf).log_softmax(-1), by_id.values), short


def total(scores: Tensor) -> Tensor:
    """log Σ exp over the last dimension, kept.

    By log-softmax, which runs row by row: torch splits a plain sum over a single long row among threads, so its bits would differ from
    those of the same row in a batch.
    """
    return scores.amax(-1, keepdim=True) - scores.log_softmax(-1).amax(-1, keepdim=True)


def _before(sums: Tensor, mass: Tensor) -> Tensor:
    """The shortest head whose probability reaches `mass`: those before which it isn't reached, and always the first."""
    kept = torch.ones_like(sums, dtype=torch.bool)
    kept[:, 1:] = (sums[:, :-1] < mass) | (mass >= 1)
    return kept


def _typical(values: Tensor, kept: Tensor, mass: Tensor) -> Tensor:
    """Keep the tokens whose surprise is nearest to the entropy, up to `mass`; columns are in token-id order."""
    logprobs = values.masked_fill(~kept, -torch.inf).log_softmax(-1)
    probabilities = logprobs.exp()
    entropy = -(probabilities * logprobs.masked_fill(~kept, 0)).sum(-1, keepdim=True)
    distance = (-logprobs - entropy).abs().masked_fill(~kept, torch.inf)
    order = distance.sort(dim=-1, stable=True).indices
    typical = torch.zeros_like(kept).scatter_(-1, order, _before(probabilities.gather(-1, order).cumsum(-1), mass))
    return kept & typical


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(-1)
