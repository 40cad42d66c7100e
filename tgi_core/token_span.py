"""How much text one token can stand for: what tells a prompt that is far too long from its length alone.

A bound holds only where no part of the tokenizer drops text or folds an unlimited run of it into one token: an unknown word, white space
beside a special token, a normalizer that strips. Whatever is not known here to be harmless means that there is no bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Any

Part = Mapping[str, Any]

_UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")
_UNICODE_SHRINK = 6
"""Times that the longest of them shortens a text in bytes, at most: what becomes one character of n bytes were at most k characters of
4 bytes, where k is 1, 3, 4, 4 for n = 1, 2, 3, 4."""
_SPLITTERS = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split")
_BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
"""Bytes that byte-level vocabularies write as the character of the same number; the others have characters from 256."""
_BYTE_LETTERS = frozenset(map(chr, [*_BYTES, *range(256, 512 - len(_BYTES))]))
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def longest_span(path: Path) -> int | None:
    """The most bytes of a text, in UTF-8, that one token can stand for, by a tokenizer.json; None where that has no bound."""
    described: Part = json.loads(path.read_text(encoding="utf-8"))
    shrink = _shrink(described.get("normalizer"))
    added: list[Part] = described.get("added_tokens") or []
    strips = any(token["lstrip"] or token["rstrip"] for token in added)
    if shrink is None or strips or not _only_splits(described.get("pre_tokenizer")):
        return None
    longest = _longest_token(described)
    return None if longest is None else ceil(shrink * max([longest, *(len(token["content"].encode()) for token in added)]))


def _shrink(normalizer: Part | None) -> float | None:
    """How many times shorter a normalizer can make a text; None if without bound."""
    if normalizer is None or normalizer["type"] in ("Prepend", "ByteLevel"):
        return 1
    if normalizer["type"] in _UNICODE_FORMS:
        return _UNICODE_SHRINK
    if normalizer["type"] == "Replace":
        old, new = normalizer["pattern"].get("String"), normalizer["content"]
        return max(len(old.encode()) / len(new.encode()), 1) if old and new else None
    if normalizer["type"] != "Sequence":
        return None
    product = 1.0
    for part in normalizer["normalizers"]:
        factor = _shrink(part)
        if factor is None:
            return None
        product *= factor
    return product


def _only_splits(splitter: Part | None) -> bool:
    """Whether a pre-tokenizer keeps all of the text."""
    if splitter is None:
        return True
    if splitter["type"] == "Sequence":
        return all(map(_only_splits, splitter["pretokenizers"]))
    return splitter["type"] in _SPLITTERS and splitter.get("behavior") != "Removed"


def _longest_token(described: Part) -> int | None:
    """Bytes of the longest token; None where text can be unknown, which many of them are together."""
    model: Part = described["model"]
    vocabulary = model.get("vocab")
    tokens: Iterable[str] = (token for token, _ in vocabulary) if isinstance(vocabulary, list) else (vocabulary or ())
    tokens = frozenset(tokens)
    if _is_byte_level(described) and model["type"] == "BPE" and tokens >= _BYTE_LETTERS:
        return max(map(len, tokens))  # a letter stands for a byte
    if model.get("byte_fallback") and model["type"] in ("BPE", "Unigram") and tokens >= _BYTE_TOKENS:
        return max(len(token.encode()) for token in tokens)
    return None


def _is_byte_level(described: Part) -> bool:
    """Whether text is turned into letters for bytes before the vocabulary sees it."""
    parts = [described.get("normalizer") or {}, described.get("pre_tokenizer") or {}]
    for part in parts:
        parts += [*part.get("normalizers", ()), *part.get("pretokenizers", ())]
    return any(part.get("type") == "ByteLevel" for part in parts)
