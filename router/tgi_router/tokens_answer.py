"""The tokens of a text as /tokenize and /chat_tokenize tell them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tgi_core.tokenizer import Tokenizer
from tgi_router.literals import Span


def tokens_of_text(
    tokenizer: Tokenizer, text: str, add_special_tokens: bool = True, literals: Sequence[Span] = ()
) -> list[dict[str, object]]:
    """Each token with the bytes that it covers: TGI counts offsets in bytes, the tokenizer counts characters."""
    encoded = tokenizer.encode(text, add_special_tokens, literals)
    at = list(accumulate((len(character.encode()) for character in text), initial=0))
    return [
        {"id": id, "text": text[start:stop], "start": at[start], "stop": at[stop]}
        for id, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True)
    ]
