"""Upper bound on the text that one token can cover, used to reject prompts that are far too long without tokenizing them.

There is a bound only if no part of the tokenizer drops text or maps a run of any length to one token, as unknown words, whitespace
next to a special token and normalizers that strip do. Any component not known to be safe here means that there is no bound.
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
"""Maximum factor by which these forms shorten a text in bytes: a character of n bytes results from at most k characters of 4 bytes,
where k is 1, 3, 4, 4 for n = 1, 2, 3, 4."""
_SPLITTERS = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split")
_BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
"""Bytes that byte-level vocabularies map to the character with the same code; other bytes map to characters from 256."""
_BYTE_LETTERS = frozenset(map(chr, [*_BYTES, *range(256, 512 - len(_BYTES))]))
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def longest_span(path: Path) -> int | None:
    """Maximum number of UTF-8 bytes of text that one token of a tokenizer.json can cover; None if unbounded."""
    described: Part = json.loads(path.read_text(encoding="utf-8"))
    shrink = _shrink(described.get("normalizer"))
    added: list[Part] = described.get("added_tokens") or []
    strips = any(token["lstrip"] or token["rstrip"] for token in added)
    if shrink is None or strips or not _only_splits(described.get("pre_tokenizer")):
        return None
    longest = _longest_token(described)
    return None if longest is None else ceil(shrink * max([longest, *(len(token["content"].encode()) for token in added)]))


def _shrink(normalizer: Part | None) -> float | None:
    """Maximum factor by which a normalizer can shorten a text; None if unbounded."""
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
    """Whether a pre-tokenizer keeps all text."""
    if splitter is None:
        return True
    if splitter["type"] == "Sequence":
        return all(map(_only_splits, splitter["pretokenizers"]))
    return splitter["type"] in _SPLITTERS and splitter.get("behavior") != "Removed"


def _longest_token(described: Part) -> int | None:
    """Length in bytes of the longest token; None if text can map to the unknown token, which can cover a run of any length."""
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
    """Whether text is converted to byte-level characters before vocabulary lookup."""
    parts = [described.get("normalizer") or {}, described.get("pre_tokenizer") or {}]
    for part in parts:
        parts += [*part.get("normalizers", ()), *part.get("pretokenizers", ())]
    return any(part.get("type") == "ByteLevel" for part in parts)
