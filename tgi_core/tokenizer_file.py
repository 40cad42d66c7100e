"""Loading and validation of tokenizer.json.

The file's truncation and padding settings are meant for training and are disabled: prompts are always encoded in full.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Fast

MAX_ID = 1 << 22
"""Limit for the size of a vocabulary; masks have a bit per id."""
MAX_STRAYS = 4
"""Maximum number of special tokens beyond the model's vocabulary that are removed instead of rejecting the file. Gemma 3 1B has its
larger variants' `<image_soft_token>`, Llama 3.2 Vision an `<|image|>` beyond its output head; the language model treats them as
text."""
MAX_GROWTH = 64
"""Maximum tokens per character and characters per token. Byte-level vocabularies and decompositions need up to 36."""
MAX_BORDER = 1024
"""Maximum number of tokens that may be added around a text."""
MAX_FACTOR = 10_000
"""Maximum factor by which all replacements of a normalizer or decoder together may lengthen a text."""
PROBE = "".join(map(chr, range(32, 127))) * 2 + "\t\n\r\u00a0éßÀ漢字かな한글\u0627\ufdfa😀👩‍👩‍👧\u2581Ġ"


def read_fast(file: Path) -> Any:
    """Load a file with the tokenizers library, without truncation and padding. Raises Exception, as the library does."""
    return _whole(Fast.from_file(str(file)))


def less(fast: Any, without: Collection[str]) -> Any:
    """Copy a tokenizer without some of its added tokens, which have the last ids."""
    described = json.loads(fast.to_str())
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] not in without]
    vocabulary = described["model"].get("vocab")
    if isinstance(vocabulary, dict):
        described["model"]["vocab"] = {token: id for token, id in vocabulary.items() if token not in without}
    return _whole(Fast.from_str(json.dumps(described)))


def _whole(fast: Any) -> Any:
    fast.no_truncation()
    fast.no_padding()
    return fast


def strays(fast: Any, vocab_size: int | None) -> tuple[str, ...]:
    """Special tokens beyond the model's vocabulary; empty if there are more than MAX_STRAYS."""
    added = fast.get_added_tokens_decoder().items()
    found = tuple(token.content for id, token in added if vocab_size is not None and id >= vocab_size and token.special)
    return found if len(found) <= MAX_STRAYS else ()


def fault(fast: Any, vocab_size: int | None) -> str:
    """Describe why a tokenizer cannot serve a model with `vocab_size` tokens; "" if it can. Has no limits of time or memory."""
    vocabulary: dict[str, int] = fast.get_vocab(with_added_tokens=True)
    if not vocabulary:
        return "the tokenizer has no tokens"
    last = max(vocabulary, key=vocabulary.__getitem__)
    if vocab_size is not None and vocabulary[last] >= vocab_size:
        first = min((token for token, id in vocabulary.items() if id >= vocab_size), key=vocabulary.__getitem__)
        return (
            f"token {_shown(first)} has id {vocabulary[first]}, beyond the model's vocabulary: the tokenizer has {len(vocabulary)} tokens, "
            f"config.json says vocab_size {vocab_size}; give the model its own tokenizer, or correct config.json"
        )
    if vocabulary[last] >= MAX_ID:
        return f"token {_shown(last)} has id {vocabulary[last]}; the maximum is {MAX_ID - 1}"
    for name, part in (("normalizer", fast.normalizer), ("decoder", fast.decoder)):
        if part is not None and (factor := _factor(json.loads(part.__getstate__()))) > MAX_FACTOR:
            return f"its {name} may lengthen a text {factor:.0g} times; the maximum is {MAX_FACTOR}"
    return _probe_fault(fast, vocab_size or MAX_ID)


def _probe_fault(fast: Any, vocab_size: int) -> str:
    """Check that a short text yields few tokens, all in the model's vocabulary, and decodes to a short text."""
    bound = MAX_GROWTH * len(PROBE) + MAX_BORDER
    for text in ("", PROBE):
        ids = fast.encode(text).ids
        if len(ids) > MAX_GROWTH * len(text) + MAX_BORDER:
            return f"it produces {len(ids)} tokens for {len(text)} characters"
        if ids and max(ids) >= vocab_size:
            return f"its post_processor adds id {max(ids)}, beyond the model's vocabulary of {vocab_size}"
    made = len(fast.decode(fast.encode(PROBE, add_special_tokens=False).ids, skip_special_tokens=False))
    return f"its decoder produces {made} characters for {len(PROBE)}" if made > bound else ""


def _factor(part: dict[str, Any]) -> float:
    """Maximum factor by which the replacements of a normalizer or decoder can lengthen a text."""
    if part["type"] == "Sequence":
        factor = 1.0
        for step in part.get("normalizers") or part.get("decoders") or ():
            factor = min(factor * _factor(step), 1e300)
        return factor
    if part["type"] == "Prepend":
        return 1.0 + len(part["prepend"])
    if part["type"] != "Replace":
        return 1.0
    replaced = part["pattern"].get("String")  # an expression may match between any two characters
    return 1.0 + len(part["content"]) if not replaced else max(1.0, len(part["content"]) / len(replaced))


def decoding_steps(decoder: dict[str, Any]) -> Iterator[str]:
    """Yield the steps of a decoder. A step that strips the end of a text is named StripEnd, since it looks ahead."""
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from decoding_steps(step)
    else:
        yield "StripEnd" if decoder.get("stop") else str(decoder["type"])


def _shown(token: str) -> str:
    return repr(token[:60])
