"""Operators on how a token is chosen: sampling fields, penalties, masks, precision of logits, and reported numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tgi_conformance.generated.inner import Model
from tgi_conformance.generated.operators import operator
from tgi_core.backend import SAMPLING, Request, Sampling, TopToken
from tgi_core.backend import sampling as formula
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.backend.reference import toy_logits


class _Otherwise(Model):
    """A row is sampled as if it were another one."""

    def other(self, row: RowState) -> Request | None:
        """Return the request to sample with, or None to keep the row's own."""
        return None

    def tokens(self, row: RowState) -> list[int]:
        """Return the tokens that the row is taken to have, as many as it really has."""
        return list(row.tokens)

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        row = row_input.row
        request, tokens = self.other(row), self.tokens(row)
        same = (request is None or request == row.request) and tokens == row.tokens
        if same or not self.fires(row):
            return super()._sample(row_input, state)
        made = super()._sample(replace(row_input, row=RowState(request or row.request, tokens, row.computed, row.tables)), state)
        row.tokens += made.get("tokens", ())
        return made


_FIELDS = tuple(spec.name for spec in SAMPLING)


@operator("field-ignored", "formula parity mates continue", weight=4)
class FieldIgnored(_Otherwise):
    """One field of a row's sampling has its default value."""

    choices = _FIELDS

    def other(self, row: RowState) -> Request:
        """Return the request without the field."""
        plain = {self.choice: getattr(Sampling(), self.choice)}
        return replace(row.request, sampling=replace(row.request.sampling, **plain))


@operator("field-of-neighbour", "mates", weight=3)
class FieldOfNeighbour(_Otherwise):
    """One field of a row's sampling is the next row's."""

    choices = _FIELDS

    def other(self, row: RowState) -> Request:
        """Return the request with the neighbour's field."""
        borrowed = {self.choice: getattr(self.neighbour(row).request.sampling, self.choice)}
        return replace(row.request, sampling=replace(row.request.sampling, **borrowed))


@operator("sampling-of-first", "mates")
class SamplingOfFirst(_Otherwise):
    """All rows are sampled like the first one."""

    def other(self, row: RowState) -> Request:
        """Return the request with the first row's sampling."""
        return replace(row.request, sampling=self.row_inputs[0].row.request.sampling)


@operator("top-k-one-off", "formula parity")
class TopKOneOff(_Otherwise):
    """Top-k keeps one token too many or too few."""

    choices = (-1, 1)

    def other(self, row: RowState) -> Request:
        """Change top-k, but never from 1 to 0, which disables it."""
        how = row.request.sampling
        top_k = max(1, how.top_k + self.choice) if how.do_sample and how.top_k else how.top_k
        return replace(row.request, sampling=replace(how, top_k=top_k))


@operator("seed-narrow", "formula")
class SeedNarrow(_Otherwise):
    """64-bit seeds are truncated."""

    choices = (8, 16, 31, 32, 63)

    def other(self, row: RowState) -> Request:
        """Return the request with only the lower bits of its seed."""
        how = row.request.sampling
        return replace(row.request, sampling=replace(how, seed=how.seed % (1 << self.choice)) if how.do_sample else how)


@operator("draw-one-off", "formula parity continue chunks prefix", weight=2)
class DrawOneOff(Model):
    """A draw uses the wrong position: the one before, or one counted from the end of the prompt, the prefix or the request."""

    choices = ("before", "generated", "cached", "steps")

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        row = row_input.row
        request, position = row.request, len(row.tokens)
        wrong = {
            "before": position - 1,
            "generated": position - request.prompt_len,
            "cached": position - request.cached,
            "steps": position - len(request.tokens),
        }[self.choice]
        if not request.sampling.do_sample or wrong == position or not self.fires(row):
            return super()._sample(row_input, state)
        plain = formula.uniform
        with patch.object(formula, "uniform", lambda seed, _: plain(seed, wrong)):
            return super()._sample(row_input, state)


@operator("penalty-forgets", "formula parity continue", weight=2)
class PenaltyForgets(_Otherwise):
    """Penalties miss some of a row's tokens, such as the prompt's, the generated ones, the newest, or all but the newest four."""

    choices = ("prompt", "generated", "newest", "early", "brought", "repeated")

    def tokens(self, row: RowState) -> list[int]:
        """Replace missed tokens with -1, which is never likely."""
        held, prompt = row.tokens, row.request.prompt_len
        if row.request.masked:  # or its mask source would receive the replacements
            return list(held)
        if self.choice == "prompt":
            return [-1] * prompt + held[prompt:]
        if self.choice == "generated":
            return held[:prompt] + [-1] * len(held[prompt:])
        if self.choice == "newest":
            return [*held[:-1], -1] if len(held) > len(row.request.tokens) else list(held)
        if self.choice == "early":
            return [-1] * (len(held) - 4) + held[-4:] if len(held) > 4 else list(held)
        if self.choice == "brought":  # generated before the request was continued
            return held[:prompt] + [-1] * (len(row.request.tokens) - prompt) + held[len(row.request.tokens) :]
        made = held[prompt:]
        return held[:prompt] + [-1 if token in made[:index] else token for index, token in enumerate(made)]


@operator("penalty-counts-prompt", "formula parity continue")
class PenaltyCountsPrompt(_Otherwise):
    """Frequency and presence penalties count the prompt, or only what was generated since the request started."""

    choices = ("prompt", "since")

    def other(self, row: RowState) -> Request:
        """Return the request with another prompt length."""
        return replace(row.request, prompt_len=0 if self.choice == "prompt" else len(row.request.tokens))


@operator("penalty-of-neighbour", "mates")
class PenaltyOfNeighbour(_Otherwise):
    """Penalties are counted over the tokens of the next row."""

    def tokens(self, row: RowState) -> list[int]:
        """Return the neighbour's tokens, as many as the row has."""
        other = (row if row.request.masked else self.neighbour(row)).tokens
        return [other[index % len(other)] for index in range(len(row.tokens))]


@operator("bias-first-only", "formula parity")
class BiasFirstOnly(_Otherwise):
    """Of several biases only the first or the last counts."""

    choices = (0, -1)

    def other(self, row: RowState) -> Request:
        """Return the request with only one bias."""
        how = row.request.sampling
        return replace(row.request, sampling=replace(how, logit_bias=(how.logit_bias[self.choice],)) if how.logit_bias else how)


class _Masked(Model):
    """A row has a mask other than its source's."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.source, self.last = self._masks, dict[int, bytes]()
        if self._masks is not None:
            self._masks = self

    def fill(self, rows: Any) -> bytes:
        """Return the source's bits, or wrong ones if the mutant fires."""
        bits = self.source.fill(rows) if self.source else b""
        row = self.row_of(rows[0].request_id)
        other = self.wrong(rows[0].request_id, bits)
        self.last[rows[0].request_id] = bits
        return bits if row is None or other == bits or not self.fires(row) else other

    def row_of(self, id: int) -> RowState | None:
        """Return a row of this step."""
        return next((row_input.row for row_input in self.row_inputs if row_input.row.request.id == id), None)

    def wrong(self, id: int, bits: bytes) -> bytes:
        """Return wrong bits."""
        raise NotImplementedError


@operator("mask-ignored", "masks", weight=1.5)
class MaskIgnored(_Masked):
    """A masked row may generate any token."""

    def wrong(self, id: int, bits: bytes) -> bytes:
        """Return a mask that allows everything."""
        return b"\xff" * len(bits)


@operator("mask-late", "masks", weight=1.5)
class MaskLate(_Masked):
    """A row is masked with its mask from the previous step."""

    def wrong(self, id: int, bits: bytes) -> bytes:
        """Return the row's last mask."""
        return self.last.get(id, bits)


@operator("mask-of-neighbour", "masks mates", weight=1.5)
class MaskOfNeighbour(_Masked):
    """A row is masked with the mask that another row got last."""

    def wrong(self, id: int, bits: bytes) -> bytes:
        """Return any other row's last mask."""
        return next((found for other, found in reversed(self.last.items()) if other != id), bits)


@operator("mask-on-neighbour", "masks mates")
class MaskOnNeighbour(Model):
    """A row that asked for no mask gets one that allows even or odd ids only, if a batch mate is masked."""

    choices = (0, 1)

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        row = row_input.row
        beside = any(other.row.request.masked for other in self.row_inputs)
        if row.request.masked or not beside or not self.fires(row):
            return super()._sample(row_input, state)
        allowed = {id for id in toy_logits(state, self._vocab_size) if id % 2 == self.choice}
        plain = formula.penalize

        def masked(logits: formula.Logits, *arguments: Any) -> dict[int, float]:
            kept = {token: value for token, value in plain(logits, *arguments).items() if token in allowed}
            return kept or plain(logits, *arguments)

        with patch.object(formula, "penalize", masked):
            return super()._sample(row_input, state)


def _float16(value: float) -> float:
    return float(struct.unpack("e", struct.pack("e", value))[0])


def _bfloat16(value: float) -> float:
    bits = int(struct.unpack("I", struct.pack("f", value))[0])
    return float(struct.unpack("f", struct.pack("I", bits + 0x8000 & 0xFFFF0000))[0])


@operator("half-precision", "parity formula mates")
class HalfPrecision(Model):
    """The logits are rounded to half precision before penalties."""

    choices = ("float16", "bfloat16")

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        if not self.fires(row_input.row):
            return super()._sample(row_input, state)
        rounded, plain = _float16 if self.choice == "float16" else _bfloat16, formula.penalize

        def narrow(logits: formula.Logits, *arguments: Any) -> dict[int, float]:
            return plain({token: rounded(value) for token, value in logits.items()}, *arguments)

        with patch.object(formula, "penalize", narrow):
            return super()._sample(row_input, state)


_warp = formula.warp


def _top_p_first(logits: formula.Logits, how: Sampling) -> dict[int, float]:
    kept = _warp(logits, replace(how, top_k=0))
    return _warp({token: logits[token] for token in kept}, replace(how, top_p=1.0))


def _temperature_last(logits: formula.Logits, how: Sampling) -> dict[int, float]:
    kept = _warp(logits, replace(how, temperature=1.0))
    return {token: value / how.temperature for token, value in kept.items()}


@operator("filters-swapped", "formula parity")
class FiltersSwapped(Model):
    """The filters apply in the wrong order: top-p before top-k, or temperature last."""

    choices = ("top-p first", "temperature last")

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        how = row_input.row.request.sampling
        both = how.top_k and how.top_p < 1 if self.choice == "top-p first" else how.temperature != 1 and how.top_p < 1
        if not how.do_sample or not both or not self.fires(row_input.row):
            return super()._sample(row_input, state)
        with patch.object(formula, "warp", _top_p_first if self.choice == "top-p first" else _temperature_last):
            return super()._sample(row_input, state)


@operator("second-best", "parity mates")
class SecondBest(Model):
    """A greedy row takes its second-best token."""

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        made = super()._sample(row_input, state)
        if not made.get("tokens") or row_input.row.request.sampling.do_sample or not self.fires(row_input.row):
            return made
        logits = toy_logits(state, self._vocab_size)
        order = sorted(logits, key=lambda token: -logits[token])
        row_input.row.tokens[-1] = order[1] if len(order) > 1 else order[0]
        return made | {"tokens": (row_input.row.tokens[-1],)}


@operator("reported-of-model", "formula parity", weight=1.5)
class ReportedOfModel(Model):
    """Logprobs and top tokens come from the plain logits instead of the distribution that was drawn from."""

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        made = super()._sample(row_input, state)
        if not (made.get("logprobs") or made.get("top")) or not self.fires(row_input.row):
            return made
        plain: Mapping[int, float] = formula.log_softmax(toy_logits(state, self._vocab_size))
        top = tuple(tuple(TopToken(item.id, plain.get(item.id, item.logprob)) for item in tops) for tops in made.get("top", ()))
        logprobs = tuple(plain.get(made["tokens"][0], value) for value in made.get("logprobs", ()))
        return made | {"top": top, "logprobs": logprobs}
