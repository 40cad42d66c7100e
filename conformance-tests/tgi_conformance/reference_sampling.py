"""The published sampling formula, implemented a second time from its description, for one distribution at a time.

Nothing here comes from `tgi_core.backend.sampling`. Philox-4x32-10 takes the key (low, high word of the seed) and the counter (low,
high word of the position, 0, 0); the top 24 bits of its first output word are the fraction. Logits get the watermark on the greenlist
that MT19937, seeded by the row's last token, shuffles to the front of the vocabulary; then the repetition penalty on
every distinct token of the row, frequency and presence penalties on generated tokens, and the bias; then temperature, top-k, top-p,
min-p and typical-p apply. The draw is the first token in ascending id order at which the cumulative probability exceeds the
fraction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from random import Random

from tgi_core.backend import Sampling

Scores = dict[int, float]
"""Token id to logit or logprob."""

CLOSE = 2e-5
"""Rounding may put cumulative probabilities closer than this to a boundary on either side of it."""


def fraction(seed: int, position: int) -> float:
    """Return the random number in [0, 1) for a seed and position."""
    low = 0xFFFFFFFF
    counter = [position & low, position >> 32 & low, 0, 0]
    key = [seed & low, seed >> 32 & low]
    for _ in range(10):
        first, third = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [third >> 32 ^ counter[1] ^ key[0], third & low, first >> 32 ^ counter[3] ^ key[1], first & low]
        key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
    return (counter[0] >> 8) / (1 << 24)


def logprobs(scores: Scores) -> Scores:
    """Normalize scores to logprobs."""
    highest = max(scores.values())
    norm = highest + math.log(math.fsum(math.exp(score - highest) for score in scores.values()))
    return {token: score - norm for token, score in scores.items()}


@lru_cache(maxsize=4096)
def green(previous: int, vocab_size: int, share: float) -> frozenset[int]:
    """Return the greenlist after a token: the head of the vocabulary, shuffled by MT19937 with the seed 15485863 times the token."""
    words = [15485863 * previous % 2**32]
    for place in range(1, 624):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + place) % 2**32)
    twister = Random()
    twister.setstate((3, (*words, 624), None))
    ids = list(range(vocab_size))
    for place in range(vocab_size - 1):
        other = place + twister.getrandbits(32) % (vocab_size - place)
        ids[place], ids[other] = ids[other], ids[place]
    return frozenset(ids[: int(vocab_size * share)])


def penalized(scores: Scores, how: Sampling, tokens: Sequence[int], prompt_len: int, vocab_size: int = 0) -> Scores:
    """Apply watermark, penalties and bias. The repetition penalty depends on a logit's sign, so it needs true logits.

    `vocab_size` matters to the watermark; 0 takes that of the largest id in `scores`.
    """
    favoured = green(tokens[-1], vocab_size or max(scores) + 1, how.watermark_gamma) if how.watermark else frozenset()
    made, whole = Counter(tokens[prompt_len:]), set(tokens)
    biases = dict.fromkeys(scores, 0.0)
    for token, bias in how.logit_bias:
        if token in biases:
            biases[token] += bias

    def score(token: int) -> float:
        value = scores[token] + (how.watermark if token in favoured else 0.0)
        if token in whole:
            value = value / how.repetition_penalty if value > 0 else value * how.repetition_penalty
        count = made[token]
        return value - how.frequency_penalty * count - (how.presence_penalty if count else 0.0) + biases[token]

    return {token: score(token) for token in scores}


def filtered(scores: Scores, how: Sampling) -> Scores:
    """Return logprobs after temperature, top-k, top-p, min-p and typical-p."""
    kept = logprobs({token: score / how.temperature for token, score in scores.items()})
    ranked = sorted(kept, key=lambda token: (-kept[token], token))
    if how.top_k:
        ranked = ranked[: how.top_k]
        kept = logprobs({token: kept[token] for token in ranked})
    if how.top_p < 1:
        kept = logprobs({token: kept[token] for token in _head(ranked, kept, how.top_p)})
    if how.min_p:
        least = max(kept.values()) + math.log(how.min_p)
        kept = logprobs({token: value for token, value in kept.items() if value >= least})
    if how.typical_p < 1:
        entropy = math.fsum(-math.exp(value) * value for value in kept.values())
        nearest = sorted(kept, key=lambda token: (abs(-kept[token] - entropy), token))
        kept = logprobs({token: kept[token] for token in _head(nearest, kept, how.typical_p)})
    return kept


def _head(ranked: Sequence[int], kept: Scores, mass: float) -> list[int]:
    """Return the shortest head whose probability reaches `mass`."""
    reached = 0.0
    for count, token in enumerate(ranked, 1):
        reached += math.exp(kept[token])
        if reached >= mass:
            return list(ranked[:count])
    return list(ranked)


@dataclass(frozen=True, slots=True)
class Draw:
    """A token, its logprob, and whether rounding cannot have changed the choice."""

    token: int
    logprob: float
    sure: bool


def draw(scores: Scores, how: Sampling, position: int, close: float = CLOSE) -> Draw:
    """Draw the token at `position` of a row, from scores after penalties and mask."""
    if not how.do_sample:
        return _greedy(logprobs(scores), close)
    by_filters = cache(partial(filtered, scores))
    kept = by_filters(how)
    target = fraction(how.seed, position)
    token = _at(kept, target)
    near = (
        replace(how, top_p=_moved(how.top_p, by), min_p=_lifted(how.min_p, by), typical_p=_moved(how.typical_p, by))
        for by in (-close, close)
    )
    neighbours = [by_filters(other) for other in near]
    tied = _tied(scores, by_filters, how, close)
    sure = not tied and all(
        other.keys() == kept.keys() and _at(other, target + by) == token for other in neighbours for by in (-close, close)
    )
    return Draw(token, kept[token], sure)


def _greedy(kept: Scores, close: float) -> Draw:
    best = min(kept, key=lambda token: (-kept[token], token))
    second = max((value for token, value in kept.items() if token != best), default=-math.inf)
    return Draw(best, kept[best], kept[best] - second > 10 * close)


def _at(kept: Scores, target: float) -> int:
    reached = 0.0
    for token in sorted(kept):
        reached += math.exp(kept[token])
        if reached > target:
            return token
    return max(kept)


def _moved(mass: float, by: float) -> float:
    return mass if mass == 1 else min(1.0, max(1e-6, mass + by))


def _lifted(share: float, by: float) -> float:
    """Move a bound that is disabled at 0."""
    return min(1.0, max(1e-6, share + by)) if share else share


def _level(scores: Scores, count: int, close: float) -> bool:
    """Return whether the cut after the best `count` scores separates equals."""
    ranked = sorted(scores.values(), reverse=True)
    return 0 < count < len(ranked) and ranked[count - 1] - ranked[count] < 10 * close


def _tied(scores: Scores, filtered: Callable[[Sampling], Scores], how: Sampling, close: float) -> bool:
    """Return whether a cut separates tokens that are nearly equal, for top-k or top-p, or nearly equally typical, for typical-p."""
    nucleus = filtered(replace(how, min_p=0.0, typical_p=1.0))
    whole = filtered(replace(how, top_p=1.0, min_p=0.0, typical_p=1.0))
    if _level(scores, how.top_k, close) or _level(whole, len(nucleus), close):
        return True
    if how.typical_p == 1:
        return False
    kept = filtered(replace(how, typical_p=1.0))
    entropy = math.fsum(-math.exp(value) * value for value in kept.values())
    far = sorted(abs(-value - entropy) for value in kept.values())
    count = len(filtered(how))
    return count < len(far) and far[count] - far[count - 1] < close
