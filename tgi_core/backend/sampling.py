"""The published sampling formula in plain Python, which every backend with determinism CORE computes.

Philox-4x32-10 yields one uniform number per (seed, position); the inverse cumulative distribution in token-id order maps it to a
token. There is no generator state, so other rows of the batch, merges, preemption, restarts and run-ahead cannot change a token.
`position` is the row index of the token being chosen.

Generator: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from tgi_core.backend.types import Sampling, SamplingField
from tgi_core.backend.watermark import greenlist

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

FIELDS = frozenset(
    {
        SamplingField.FREQUENCY_PENALTY,
        SamplingField.LOGIT_BIAS,
        SamplingField.MIN_P,
        SamplingField.PRESENCE_PENALTY,
        SamplingField.REPETITION_PENALTY,
        SamplingField.SEED,
        SamplingField.TYPICAL_P,
        SamplingField.WATERMARK,
    }
)
"""Fields that the formula implements. Listed by name, so that a field added by a later contract is not included implicitly."""

Logits = Mapping[int, float]
"""Token id to logit; a missing id has logit minus infinity."""


def uniform(seed: int, position: int) -> float:
    """Uniform number in [0, 1) with 24 random bits, exact in float32."""
    key0, key1 = seed & _MASK, (seed >> 32) & _MASK
    c0, c1, c2, c3 = position & _MASK, (position >> 32) & _MASK, 0, 0
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ key0, product1 & _MASK, (product0 >> 32) ^ c3 ^ key1, product0 & _MASK
        key0, key1 = (key0 + _WEYL[0]) & _MASK, (key1 + _WEYL[1]) & _MASK
    return (c0 >> 8) * 2.0**-24


def mark(logits: Logits, sampling: Sampling, previous: int, vocab_size: int) -> dict[int, float]:
    """Add the watermark's bias to the greenlist that the token `previous` selects."""
    out = dict(logits)
    for token in greenlist(previous, vocab_size, sampling.watermark_gamma) & out.keys():
        out[token] += sampling.watermark
    return out


def penalize(logits: Logits, sampling: Sampling, tokens: Sequence[int], prompt_len: int) -> dict[int, float]:
    """Apply the repetition penalty once per distinct token of the row, then to generated tokens the frequency penalty per
    occurrence and the presence penalty once, then the logit bias."""
    out = dict(logits)
    if sampling.repetition_penalty != 1.0:
        for token in set(tokens) & out.keys():
            value = out[token]
            out[token] = value * sampling.repetition_penalty if value < 0 else value / sampling.repetition_penalty
    if sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0:
        for token, count in Counter(tokens[prompt_len:]).items():
            if token in out:
                out[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for token, bias in sampling.logit_bias:
        if token in out:
            out[token] += bias
    return out


def log_softmax(logits: Logits) -> dict[int, float]:
    """Token id to logprob."""
    peak = max(logits.values())
    total = math.log(sum(math.exp(value - peak) for value in logits.values()))
    return {token: value - peak - total for token, value in logits.items()}


def _by_logprob(logits: Logits) -> list[int]:
    return sorted(logits, key=lambda token: (-logits[token], token))


def _keep_nucleus(order: Sequence[int], logprobs: Logits, mass: float) -> set[int]:
    """Shortest prefix of `order` whose total probability reaches `mass`; never empty."""
    total, kept = 0.0, set[int]()
    for token in order:
        if kept and total >= mass:
            break
        kept.add(token)
        total += math.exp(logprobs[token])
    return kept


def warp(logits: Logits, sampling: Sampling) -> dict[int, float]:
    """Apply temperature, top-k, top-p, min-p and typical-p, in this order, as transformers does.

    Ties are broken by token id: the lowest is kept first. Min-p keeps every token whose probability is at least `min_p` times the
    largest.
    """
    out = {token: value / sampling.temperature for token, value in logits.items()}
    if 0 < sampling.top_k < len(out):
        out = {token: out[token] for token in _by_logprob(out)[: sampling.top_k]}
    if sampling.top_p < 1.0:
        kept = _keep_nucleus(_by_logprob(out), log_softmax(out), sampling.top_p)
        out = {token: out[token] for token in kept}
    if sampling.min_p > 0.0:
        peak = max(out.values())
        out = {token: value for token, value in out.items() if math.exp(value - peak) >= sampling.min_p}
    if sampling.typical_p < 1.0:
        logprobs = log_softmax(out)
        entropy = -sum(math.exp(value) * value for value in logprobs.values())
        order = sorted(out, key=lambda token: (abs(-logprobs[token] - entropy), token))
        kept = _keep_nucleus(order, logprobs, sampling.typical_p)
        out = {token: out[token] for token in kept}
    return out


def distribution(
    logits: Logits,
    sampling: Sampling,
    tokens: Sequence[int],
    prompt_len: int,
    allowed: Container[int] | None = None,
    vocab_size: int | None = None,
) -> dict[int, float]:
    """Logprobs from which the next token is chosen, without the tokens that filters drop. The mask `allowed` must allow at least
    one token of `logits`. `vocab_size`, by default that of the largest id of `logits`, matters to watermarks."""
    if sampling.watermark != 0.0:
        logits = mark(logits, sampling, tokens[-1], max(logits) + 1 if vocab_size is None else vocab_size)
    out = penalize(logits, sampling, tokens, prompt_len)
    if allowed is not None:
        out = {token: value for token, value in out.items() if token in allowed}
    return log_softmax(warp(out, sampling) if sampling.do_sample else out)


def choose(logprobs: Logits, sampling: Sampling, position: int) -> int:
    """Choose a token: greedily, the lowest id among the likeliest; else the inverse cumulative distribution at `uniform(seed,
    position)`."""
    if not sampling.do_sample:
        return min(logprobs, key=lambda token: (-logprobs[token], token))
    target = uniform(sampling.seed, position)
    total = 0.0
    for token in sorted(logprobs):
        total += math.exp(logprobs[token])
        if total > target:
            return token
    return max(logprobs)
