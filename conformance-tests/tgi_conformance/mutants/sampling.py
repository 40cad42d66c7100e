"""Choosing tokens: parameters of the wrong row, the wrong generator, the wrong order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Request, Sampling
from tgi_core.backend import sampling as formula
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput


class Altered(Sound):
    """Samples each row with a request that `change` has altered."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Return the request to sample with."""
        return request

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        row, kept = row_input.row, row_input.row.request
        row.request = self.change(row_input, kept)
        try:
            return super()._sample(row_input, state)
        finally:
            row.request = kept

    def _how(self, request: Request, **fields: Any) -> Request:
        return replace(request, sampling=replace(request.sampling, **fields))


@mutant("first-sampling-for-all", "mates.sampling", "mates.sampling-merge")
class FirstSamplingForAll(Altered):
    """The first request's parameters are used for the whole batch (paiml/aprender#2027: other temperatures were ignored)."""

    def _compute(self, launch: LaunchedStep) -> None:
        self._first = launch.row_inputs[0].row.request.sampling if launch.row_inputs else Sampling()
        super()._compute(launch)

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Use the first row's parameters."""
        return replace(request, sampling=self._first)


@mutant("seed-by-place", "mates.sampling", "formula.uniform")
class SeedByPlace(Altered):
    """One generator for the batch: a row's random numbers depend on its place."""

    def _compute(self, launch: LaunchedStep) -> None:
        self._places = itertools.count(1)
        super()._compute(launch)

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Mix the place into the seed."""
        return self._how(request, seed=(request.sampling.seed + 1000 * next(self._places)) % 2**64)


@mutant("seed-by-step", "mates.seeds", "continue.sampled", "formula.uniform")
class SeedByStep(Altered):
    """A stateful generator: random numbers depend on how many steps the session has run."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Mix the step into the seed."""
        return self._how(request, seed=(request.sampling.seed + self._steps) % 2**64)


@mutant("seed-low-word", "formula.uniform")
class SeedLowWord(Altered):
    """A 64-bit seed is cut to 32 bits (numpy's legacy seeding, and several HTTP servers)."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Drop the high word."""
        return self._how(request, seed=request.sampling.seed & 0xFFFFFFFF)


@mutant("seed-ignored", "mates.seeds", "formula.uniform")
class SeedIgnored(Altered):
    """The seed is not passed on."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Use seed 0."""
        return self._how(request, seed=0)


@mutant("greedy-is-sampled", "parity.greedy", "parity.one-by-one", "formula.greedy-limits")
class GreedyIsSampled(Altered):
    """do_sample is ignored."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Always sample."""
        return self._how(request, do_sample=True)


@mutant("frequency-ignored", "parity.counts", "formula.counts")
class FrequencyIgnored(Altered):
    """A declared field is never read: a silent no-op (a recurring problem of vllm-ascend's patches)."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Drop the frequency penalty."""
        return self._how(request, frequency_penalty=0.0)


@mutant("bias-ignored", "parity.counts", "formula.counts")
class BiasIgnored(Altered):
    """Bias is accepted and dropped."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Drop the bias."""
        return self._how(request, logit_bias=())


@mutant("bias-once", "formula.counts")
class BiasOnce(Altered):
    """Biases are kept in a dict: of two for one token only the last counts."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Keep the last one."""
        return self._how(request, logit_bias=tuple(dict(request.sampling.logit_bias).items()))


@mutant("penalties-count-prompt", "parity.counts", "formula.counts")
class PenaltiesCountPrompt(Altered):
    """Frequency and presence penalties count the prompt as well."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Treat the whole row as generated."""
        return replace(request, prompt_len=0)


@mutant("penalties-forget", "continue.sampled", "formula.counts")
class PenaltiesForget(Altered):
    """A continued request's penalties start from zero: everything it brought counts as its prompt."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Treat the request as new."""
        return replace(request, prompt_len=len(request.tokens))


@mutant("top-k-and-one", "formula.filters", "parity.sampled")
class TopKAndOne(Altered):
    """One token too many survives top-k (> instead of >= in a threshold)."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Use k + 1."""
        how = request.sampling
        return self._how(request, top_k=how.top_k + 1 if how.top_k else 0)


@mutant("typical-is-off", "formula.typical", "parity.sampled")
class TypicalIsOff(Altered):
    """typical_p is declared but has no effect."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Set it to 1."""
        return self._how(request, typical_p=1.0)


@mutant("watermark-ignored", "formula.watermark")
class WatermarkIgnored(Altered):
    """The watermark is declared but has no effect."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Set its bias to 0."""
        return self._how(request, watermark=0.0)


@mutant("watermark-half", "formula.watermark")
class WatermarkHalf(Altered):
    """The greenlist is half of the vocabulary, whatever its share should be."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Use the default share."""
        return self._how(request, watermark_gamma=0.5)


@mutant("repetition-off", "parity.repetition")
class RepetitionOff(Altered):
    """The repetition penalty has no effect."""

    def change(self, row_input: RowInput, request: Request) -> Request:
        """Set it to 1."""
        return self._how(request, repetition_penalty=1.0)


class Patched(Sound):
    """Samples with some functions of the formula replaced."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Return the replacements by name."""
        return {}

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, function in self.other().items():
                stack.enter_context(patch.object(formula, name, function))
            yield

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        with self._exchanged():
            return super()._sample(row_input, state)


@mutant("nucleus-without-edge", "formula.filters", "parity.sampled", "parity.masked")
class NucleusWithoutEdge(Patched):
    """Top-p drops the token that crosses the mass, which belongs to the nucleus."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Drop one token, unless it is the only one."""

        def keep(order: list[int], logprobs: formula.Logits, mass: float) -> set[int]:
            whole = _keep_nucleus(order, logprobs, mass)
            return whole - {order[len(whole) - 1]} if len(whole) > 1 else whole

        return {"_keep_nucleus": keep}


_keep_nucleus = formula._keep_nucleus
_warp = formula.warp
_penalize = formula.penalize
_mark = formula.mark
_uniform = formula.uniform


@mutant("top-p-before-top-k", "parity.sampled", "formula.filters")
class TopPBeforeTopK(Patched):
    """Top-p applies to the whole distribution, then top-k, which is not the published order."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Filter in two passes."""

        def warp(logits: formula.Logits, how: Sampling) -> dict[int, float]:
            first = _warp(logits, replace(how, top_k=0, typical_p=1.0))
            return _warp(first, replace(how, temperature=1.0, top_p=1.0))

        return {"warp": warp}


@mutant("min-p-before-top-p", "formula.min-p")
class MinPBeforeTopP(Patched):
    """Min-p applies before the other filters (vLLM's order), so that top-p counts the remaining mass."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Filter in two passes."""

        def warp(logits: formula.Logits, how: Sampling) -> dict[int, float]:
            likely = _warp(logits, Sampling(True, how.temperature, min_p=how.min_p))
            return _warp(likely, replace(how, temperature=1.0, min_p=0.0))

        return {"warp": warp}


@mutant("temperature-last", "parity.sampled", "formula.filters")
class TemperatureLast(Patched):
    """Temperature applies after the filters (llama.cpp's default order), so that top-p cuts elsewhere."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Filter first."""

        def warp(logits: formula.Logits, how: Sampling) -> dict[int, float]:
            kept = _warp(logits, replace(how, temperature=1.0))
            return {token: logits[token] / how.temperature for token in kept}

        return {"warp": warp}


@mutant("repetition-divides-all", "parity.repetition")
class RepetitionDividesAll(Patched):
    """The repetition penalty divides negative logits too, which makes repetition more likely."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Always divide."""

        def penalize(logits: formula.Logits, how: Sampling, tokens: list[int], prompt_len: int) -> dict[int, float]:
            out = {token: value / (how.repetition_penalty if token in set(tokens) else 1) for token, value in logits.items()}
            return _penalize(out, replace(how, repetition_penalty=1.0), tokens, prompt_len)

        return {"penalize": penalize}


@mutant("watermark-by-prompt", "formula.watermark")
class WatermarkByPrompt(Sound):
    """The last token of the prompt selects every greenlist of the row."""

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        last = row_input.row.tokens[row_input.row.request.prompt_len - 1]

        def mark(logits: formula.Logits, how: Sampling, previous: int, vocab_size: int) -> dict[int, float]:
            return _mark(logits, how, last, vocab_size)

        with patch.object(formula, "mark", mark):
            return super()._sample(row_input, state)


@mutant("watermark-of-the-logits", "formula.watermark")
class WatermarkOfTheLogits(Patched):
    """The greenlist is drawn from a vocabulary that is one token too large, as with padded logits."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Take a larger vocabulary."""
        return {"mark": lambda logits, how, previous, vocab_size: _mark(logits, how, previous, vocab_size + 1)}


@mutant("presence-per-count", "parity.counts", "formula.counts")
class PresencePerCount(Patched):
    """The presence penalty applies per occurrence, like the frequency penalty."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Apply both per occurrence."""

        def penalize(logits: formula.Logits, how: Sampling, tokens: list[int], prompt_len: int) -> dict[int, float]:
            both = replace(how, frequency_penalty=how.frequency_penalty + how.presence_penalty, presence_penalty=0.0)
            return _penalize(logits, both, tokens, prompt_len)

        return {"penalize": penalize}


@mutant("position-off-by-one", "formula.uniform", "parity.sampled")
class PositionOffByOne(Patched):
    """The draw uses the position before that of the chosen token."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Use one position less."""
        return {"uniform": lambda seed, position: _uniform(seed, position - 1)}


@mutant("draw-by-rank", "formula.uniform", "parity.sampled")
class DrawByRank(Patched):
    """The cumulative distribution runs from the most likely token down instead of by token id."""

    def other(self) -> dict[str, Callable[..., Any]]:
        """Order tokens by rank."""

        def choose(logprobs: formula.Logits, how: Sampling, position: int) -> int:
            if not how.do_sample:
                return formula._by_logprob(logprobs)[0]
            by_rank = dict(enumerate(formula._by_logprob(logprobs)))
            place = _choose({rank: logprobs[token] for rank, token in by_rank.items()}, how, position)
            return by_rank[place]

        return {"choose": choose}


_choose = formula.choose
