"""Responses that a grammar allows, chosen byte by byte, as a model that knows nothing would."""

from __future__ import annotations

from random import Random

from llguidance import LLMatcher

from tgi_core.grammar import Grammar, matching

BYTES = matching.bytes_vocabulary()
_PLAIN = frozenset(b'abcdefghijklmnopqrstuvwxyz0123456789-/.:@{}[]",: ')


class Stalled(Exception):
    """Nothing is allowed, or the response does not end."""


def walk(grammar: Grammar, seed: int, longest: int = 6000) -> bytes:
    """A complete response. Raises Stalled, InvalidGrammar."""
    pick = Random(seed)
    matcher = matching.start(BYTES, matching.translate(grammar).text)
    ending, made = set(BYTES.eos_tokens), bytearray()
    while len(made) < longest:
        allowed = _allowed(matcher)
        if not allowed or matcher.is_error():
            raise Stalled(matching.readable(matcher.get_error()) or "nothing is allowed")
        if ending & set(allowed) and (len(allowed) == len(ending) or pick.random() < 0.7):
            return bytes(made)
        usable = [token for token in allowed if token not in ending]
        closing = [token for token in usable if token in b"}]"] or [token for token in usable if token in b'"']
        plain = [token for token in usable if token in _PLAIN] or usable
        hurry = 0.3 + 0.7 * len(made) / longest
        token = pick.choice(closing if closing and pick.random() < hurry else plain)
        matcher.consume_token(token)
        made.append(token)
    raise Stalled("it does not end")


def _allowed(matcher: LLMatcher) -> list[int]:
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    return [token for token in range(BYTES.vocab_size) if mask >> token & 1]
