"""A worker that tokenizes: started as a script by `tgi_router.tokenizing`, so it imports little but the tokenizer.

Neither time nor memory of a tokenizer are in proportion to the text alone: its rules are the model's. And it holds the interpreter's
lock for seconds where a text is long, which would stop the event loop of the process that it runs in.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from tgi_core.literals import Span
from tgi_core.tokenizer import Tokenizer
from tgi_core.workers.serving import serve

SECONDS = 30.0
"""Processor time for one text: the slowest 2 MB take 10 s on a slow machine."""
MEMORY_BYTES = 4 << 30
"""Address space of the process: the tokens of 2 MB take 1 GiB."""
LENGTH = struct.Struct("=Q")
"""Tokens of the text; a `array("I")` with the ids that are wanted follows."""


def ids_of_text(tokenizer: Tokenizer, text: str, special: bool, literals: Sequence[Span], keep: int) -> bytes:
    """The number of tokens and the ids of the last `keep`."""
    ids = tokenizer.encode(text, special, literals).ids
    return LENGTH.pack(len(ids)) + array("I", ids[-keep:]).tobytes()


def tokens_of_text(tokenizer: Tokenizer, text: str, special: bool, literals: Sequence[Span]) -> bytes:
    """Each token with the bytes that it covers, as JSON: TGI counts offsets in bytes, the tokenizer counts characters."""
    encoded = tokenizer.encode(text, special, literals)
    at = list(accumulate((len(character.encode()) for character in text), initial=0))
    tokens = [
        {"id": id, "text": text[start:stop], "start": at[start], "stop": at[stop]}
        for id, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True)
    ]
    return json.dumps(tokens, ensure_ascii=False, separators=(",", ":")).encode()


def main(directory: Path) -> None:
    """Answer requests: a line of JSON, then the text."""
    tokenizer = Tokenizer.load(directory, tried=True)

    def answer(request: bytes) -> bytes:
        head, _, text = request.partition(b"\n")
        special, literals, keep = json.loads(head)
        if keep is None:
            return tokens_of_text(tokenizer, text.decode(), special, literals)
        return ids_of_text(tokenizer, text.decode(), special, literals, keep)

    serve(answer, SECONDS, MEMORY_BYTES)


if __name__ == "__main__":
    main(Path(sys.argv[2]))
