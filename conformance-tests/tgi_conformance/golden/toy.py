"""The toy language model of the reference backend, implemented a second time from its description.

Each position has a state of 64 bits: mix(before ^ mix(far ^ token)), where `before` is the state one position back, `far` the state
at half the position, and both are 0 at position 0, except that under an adapter `before` is the CRC-32 of its name there. `mix` is
the finalizer of splitmix64.

A state yields up to eight candidates: at rank r, the next state of the chain names the token `state mod vocabulary` with logit -r/2
+ (upper 24 bits)/2^25, and the first rank of a token counts. Under a mask, every other allowed token t has the logit (upper 24 bits
of mix(state ^ t))/2^22 - 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

_ALL = (1 << 64) - 1


def scramble(value: int) -> int:
    """Take one splitmix64 step from a seed."""
    value = value + 0x9E3779B97F4A7C15 & _ALL
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ value >> shift) * factor & _ALL
    return value ^ value >> 31


def scores(tokens: Sequence[int], vocab_size: int, others: Sequence[int] = (), adapter: str = "") -> list[dict[int, float]]:
    """Return the logits after each position: of the candidates, and of `others`, which are unlikely."""
    states: list[int] = []
    found = []
    for position, token in enumerate(tokens):
        before, far = (states[position - 1], states[position // 2]) if position else (crc32(adapter.encode()), 0)
        states.append(scramble(before ^ scramble(far ^ token)))
        found.append(_unlikely(states[-1], others) | _candidates(states[-1], vocab_size))
    return found


def _unlikely(state: int, others: Sequence[int]) -> dict[int, float]:
    return {token: (scramble(state ^ token) >> 40) / (1 << 22) - 20 for token in others}


def _candidates(state: int, vocab_size: int) -> dict[int, float]:
    logits: dict[int, float] = {}
    for rank in range(min(8, vocab_size)):
        state = scramble(state)
        token = state % vocab_size
        if token not in logits:
            logits[token] = (state >> 40) / (1 << 25) - rank / 2
    return logits
