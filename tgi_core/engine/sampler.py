"""Sampling: the published formula (`tgi_core.backend.sampling`) over many rows at once.

Every operation is per row, so that a row's token never depends on other rows. Probabilities are computed in double precision for
rows that draw, and in float32 if only the logprob of an argmax is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend import Row, RowFault, RowFaultKind, SamplingField, TopToken
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.sampling import uniform
from tgi_core.backend.sampling_spec import HOST_ONLY, PENALTIES, without
from tgi_core.engine.failures import TORCH_ERRORS
from tgi_core.engine.greenlists import add_watermark
from tgi_core.engine.warping import FIELDS as FILTER_FIELDS
from tgi_core.engine.warping import Candidates, exact, is_cut, total, warp

FIELDS = FILTER_FIELDS | {
    SamplingField.FREQUENCY_PENALTY,
    SamplingField.LOGIT_BIAS,
    SamplingField.PRESENCE_PENALTY,
    SamplingField.REPETITION_PENALTY,
    SamplingField.SEED,
    SamplingField.WATERMARK,
}
"""Sampling fields that a session with this sampler declares."""

NOT_FINITE = RowFault(RowFaultKind.NAN, "the model's logits are not finite")
UNBOUND = RowFault(RowFaultKind.SAMPLER, "penalties and bias leave no finite scores")
MASKED = RowFault(RowFaultKind.MASK, "the mask allows no token")


@dataclass(slots=True)
class Sampled:
    """Tokens, logprobs and top tokens by row, on the host; `faults` by index of row."""

    tokens: list[int]
    logprobs: list[float]
    top: list[tuple[TopToken, ...]]
    faults: dict[int, RowFault]

    def result(self, index: int, row: RowState, prompt_logprobs: tuple[float | None, ...]) -> Row:
        """What the contract returns for one row."""
        request = row.request
        if index in self.faults:
            return Row(request.id, fault=self.faults[index])
        return Row(
            request.id,
            (self.tokens[index],),
            (self.logprobs[index],) if request.want.logprobs else (),
            (self.top[index],) if request.want.top_n else (),
            prompt_logprobs,
        )


class PlainSampler(Protocol):
    """A device's fast sampler for plain rows: those that take the argmax, or a draw at a temperature without filters and penalties."""

    def choose(self, logits: Tensor, rows: Sequence[int], draws: Sequence[tuple[float, float]], totals: bool) -> SampledTokens:
        """A token for each of `rows` of logits [rows, vocabulary]: a draw at (temperature, uniform number) by the formula, or the argmax
        if the temperature is 0. Logprobs of argmax tokens may be missing unless `totals`."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens and their logprobs, row by row; a row whose logits are not finite has token -1."""

    tokens: list[int]
    logprobs: list[float]


def sample(
    logits: Tensor, rows: Sequence[RowState], allowed: Tensor | None, plain_sampler: PlainSampler | None = None
) -> Sampled:
    """One token per row. `logits` [rows, vocabulary]; `allowed` alike, bool, or None when no row is masked."""
    vocab = logits.shape[-1]
    plain = [i for i, row in enumerate(rows) if is_plain(row, vocab)] if plain_sampler is not None else []
    if plain_sampler is None or not plain:
        return _sample_any(logits, rows, allowed)
    sampled = Sampled([0] * len(rows), [0.0] * len(rows), [()] * len(rows), {})
    _choose_plain(sampled, logits, rows, plain, plain_sampler)
    if len(plain) < len(rows):
        left = sorted(set(range(len(rows))).difference(plain))
        part = _sample_any(logits[left], [rows[i] for i in left], None if allowed is None else allowed[left])
        for place, i in enumerate(left):
            sampled.tokens[i], sampled.logprobs[i], sampled.top[i] = part.tokens[place], part.logprobs[place], part.top[place]
            if place in part.faults:
                sampled.faults[i] = part.faults[place]
    return sampled


def is_plain(row: RowState, vocab: int) -> bool:
    """Whether a row needs nothing but the argmax or a draw at a temperature."""
    request = row.request
    sampling = request.sampling
    if request.masked or request.want.top_n:
        return False
    values, neutral = HOST_ONLY if sampling.do_sample else PENALTIES
    if values(sampling) == neutral:
        return True
    return sampling.do_sample and without(PENALTIES, sampling) and not is_cut(sampling, vocab)


def takes_argmax(row: RowState, vocab_size: int) -> bool:
    """Whether a row needs nothing but the argmax, which even devices without float64 compute exactly."""
    return is_plain(row, vocab_size) and not row.request.sampling.do_sample


def _choose_plain(
    sampled: Sampled, logits: Tensor, rows: Sequence[RowState], plain: Sequence[int], plain_sampler: PlainSampler
) -> None:
    draws = []
    for i in plain:
        sampling = rows[i].request.sampling
        drawn = (sampling.temperature, uniform(sampling.seed, len(rows[i].tokens))) if sampling.do_sample else (0.0, 0.0)
        draws.append(drawn)
    chosen = plain_sampler.choose(logits, plain, draws, any(rows[i].request.want.logprobs for i in plain))
    for i, token, logprob in zip(plain, chosen.tokens, chosen.logprobs, strict=True):
        sampled.tokens[i], sampled.logprobs[i] = max(0, token), logprob
        if token < 0:
            sampled.faults[i] = NOT_FINITE


def _sample_any(logits: Tensor, rows: Sequence[RowState], allowed: Tensor | None) -> Sampled:
    """The general sampler, for any row, with torch's operators."""
    scores = logits.float()
    faults = _not_finite(scores)
    scores = _penalize(scores, rows)
    if not all(without(PENALTIES, row.request.sampling) for row in rows):
        faults = dict.fromkeys(_not_finite(scores), UNBOUND) | faults
    if allowed is not None:
        faults |= {index: MASKED for index in _indices(~allowed.any(-1)) if index not in faults}
        scores = scores.masked_fill(~allowed, -torch.inf)
    if faults:
        scores = scores.clone()
        scores[list(faults)] = 0
    tokens = scores.argmax(-1)
    drawn = [i for i, row in enumerate(rows) if row.request.sampling.do_sample]
    logprobs = torch.zeros(len(rows), dtype=torch.float64)
    top: list[tuple[TopToken, ...]] = [()] * len(rows)
    _describe_greedy(scores, rows, tokens, logprobs, top)
    if drawn:
        candidates = warp(exact(scores[drawn]), [rows[i].request.sampling for i in drawn])
        targets = [uniform(rows[i].request.sampling.seed, len(rows[i].tokens)) for i in drawn]
        chosen, chances = candidates.choose(torch.tensor(targets, dtype=torch.float64, device=candidates.logprobs.device))
        tokens[drawn], logprobs[drawn] = chosen.to(tokens.device), chances.cpu()
        _describe_drawn(candidates, rows, drawn, top)
    return Sampled(tokens.tolist(), logprobs.tolist(), top, faults)


def sample_each(logits: Tensor, rows: Sequence[RowState], allowed: Tensor | None) -> Sampled:
    """The same, row by row: a failure faults only that row, and the others get the same tokens as without it."""
    whole = Sampled([], [], [], {})
    for index, row in enumerate(rows):
        place = slice(index, index + 1)
        try:
            one = sample(logits[place], [row], None if allowed is None else allowed[place])
        except TORCH_ERRORS as error:
            reason = f"sampling its token failed: {type(error).__name__}"
            one = Sampled([0], [0.0], [()], {0: RowFault(RowFaultKind.SAMPLER, reason)})
        whole.tokens += one.tokens
        whole.logprobs += one.logprobs
        whole.top += one.top
        if one.faults:
            whole.faults[index] = one.faults[0]
    return whole


def _not_finite(scores: Tensor) -> dict[int, RowFault]:
    low, high = torch.aminmax(scores, dim=-1)
    return dict.fromkeys(_indices(~(torch.isfinite(low) & torch.isfinite(high))), NOT_FINITE)


def _indices(mask: Tensor) -> list[int]:
    return mask.nonzero().flatten().tolist() if bool(mask.any()) else []


def _penalize(scores: Tensor, rows: Sequence[RowState]) -> Tensor:
    """Watermark; repetition penalty over every distinct token of a row; frequency and presence penalty over the generated ones; bias."""
    touched = [i for i, row in enumerate(rows) if not without(PENALTIES, row.request.sampling)]
    if touched:
        scores = scores.clone()
    for i in touched:
        row, sampling = rows[i], rows[i].request.sampling
        if sampling.watermark != 0:
            add_watermark(scores[i], row.tokens[-1], sampling)
        if sampling.repetition_penalty != 1:
            ids = torch.tensor(sorted(set(row.tokens)), device=scores.device)
            values = scores[i, ids]
            scores[i, ids] = torch.where(values < 0, values * sampling.repetition_penalty, values / sampling.repetition_penalty)
        made = row.tokens[row.request.prompt_len :]
        if (sampling.frequency_penalty != 0 or sampling.presence_penalty != 0) and made:
            ids, counts = torch.tensor(made, device=scores.device).unique(return_counts=True)
            scores[i, ids] -= sampling.frequency_penalty * counts + sampling.presence_penalty
        for token, bias in sampling.logit_bias:
            scores[i, token] += bias
    return scores


def _describe_greedy(
    scores: Tensor, rows: Sequence[RowState], tokens: Tensor, logprobs: Tensor, top: list[tuple[TopToken, ...]]
) -> None:
    """Fill in logprobs and top tokens of the rows that take the argmax and ask for them."""
    asking = [
        i
        for i, row in enumerate(rows)
        if not row.request.sampling.do_sample and (row.request.want.logprobs or row.request.want.top_n)
    ]
    if not asking:
        return
    subset = scores if len(asking) == len(rows) else scores[asking]
    described = subset - total(subset)  # rounded as a `PlainSampler` rounds: requesting top tokens must not change logprobs
    logprobs[asking] = described.gather(-1, tokens[asking].unsqueeze(-1)).squeeze(-1).cpu().double()
    for place, i in enumerate(asking):
        if rows[i].request.want.top_n:
            top[i] = likeliest(described[place], rows[i].request.want.top_n)


def _describe_drawn(candidates: Candidates, rows: Sequence[RowState], drawn: list[int], top: list[tuple[TopToken, ...]]) -> None:
    for place, i in enumerate(drawn):
        if rows[i].request.want.top_n:
            kept = candidates.ids(place)
            top[i] = likeliest(candidates.logprobs[place], rows[i].request.want.top_n, kept)


def likeliest(logprobs: Tensor, count: int, ids: Tensor | None = None) -> tuple[TopToken, ...]:
    """The `count` likeliest of [tokens] with nonzero probability, ties by token id; `ids`, ascending, are their token ids."""
    count = min(count, logprobs.shape[0])
    least = logprobs.topk(count).values[-1]
    places = (logprobs >= least).nonzero().flatten()
    values, order = logprobs[places].sort(descending=True, stable=True)
    chosen = places[order[:count]]
    names = (chosen if ids is None else ids[chosen]).tolist()
    return tuple(TopToken(n, v) for n, v in zip(names, values[:count].tolist(), strict=True) if v > -torch.inf)
