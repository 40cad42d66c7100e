"""The watermark's greenlist in plain Python, and the test that finds watermarked text.

The previous token seeds a random permutation of the vocabulary, whose head is the greenlist; the watermark favours its tokens. The
permutation is `torch.randperm`'s on the CPU, as in TGI: a shuffle by the Mersenne Twister MT19937.

Kirchenbauer, Geiping, Wen, Katz, Miers, Goldstein, "A Watermark for Large Language Models", ICML 2023.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

HASH_KEY = 15485863
"""Multiplier of the previous token's id; the product seeds the permutation."""

_WORD = 0xFFFFFFFF
_STATE, _SHIFT = 624, 397
_UPPER, _LOWER, _TWIST = 0x80000000, 0x7FFFFFFF, 0x9908B0DF

_SMALL = 1024
"""Largest vocabulary of which the greenlists after all tokens are kept."""


def mt19937(seed: int) -> Iterator[int]:
    """32-bit outputs of MT19937 from the low 32 bits of `seed`, initialized as by `init_genrand`."""
    state = [seed & _WORD]
    for place in range(1, _STATE):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + place) & _WORD)
    while True:
        for place in range(_STATE):
            mixed = state[place] & _UPPER | state[(place + 1) % _STATE] & _LOWER
            word = state[place] = state[(place + _SHIFT) % _STATE] ^ mixed >> 1 ^ (_TWIST if mixed & 1 else 0)
            word ^= word >> 11
            word ^= word << 7 & 0x9D2C5680
            word ^= word << 15 & 0xEFC60000
            yield word ^ word >> 18


def permutation(seed: int, size: int, count: int) -> list[int]:
    """The first `count` of a random permutation of range(size), as `torch.randperm(size)` with a CPU generator at `seed`."""
    order = list(range(size))
    for place, word in zip(range(min(count, size - 1)), mt19937(seed), strict=False):
        other = place + word % (size - place)
        order[place], order[other] = order[other], order[place]
    return order[:count]


def greenlist(previous: int, vocab_size: int, gamma: float) -> frozenset[int]:
    """Token ids that the watermark favours after the token `previous`: int(vocab_size × gamma) of them."""
    return (_kept if vocab_size <= _SMALL else _some_kept)(previous, vocab_size, gamma)


def _drawn(previous: int, vocab_size: int, gamma: float) -> frozenset[int]:
    return frozenset(permutation(HASH_KEY * previous, vocab_size, int(vocab_size * gamma)))


_kept, _some_kept = lru_cache(maxsize=4096)(_drawn), lru_cache(maxsize=64)(_drawn)


def z_score(tokens: Sequence[int], vocab_size: int, gamma: float, distinct: bool = False) -> float:
    """Standard deviations by which the green tokens of a text exceed what chance gives; above 4, the text is watermarked.

    The first token only selects the next one's greenlist. `distinct` counts every pair of tokens once, however often it occurs. Raises
    ValueError for fewer than two tokens, or a gamma that is not between 0 and 1.
    """
    if len(tokens) < 2 or not 0 < gamma < 1:
        raise ValueError("needs at least two tokens, and 0 < gamma < 1")
    pairs: Collection[tuple[int, int]] = set(pairwise(tokens)) if distinct else list(pairwise(tokens))
    green = sum(token in greenlist(previous, vocab_size, gamma) for previous, token in sorted(pairs))
    count = len(pairs)
    return (green - gamma * count) / math.sqrt(count * gamma * (1 - gamma))
