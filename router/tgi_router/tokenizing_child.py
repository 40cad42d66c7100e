"""A worker process that tokenizes; `tgi_router.tokenizing` runs it as a script, so it imports little but the tokenizer.

The time and memory that a tokenizer takes depend not only on the text, but also on the rules of the model. For a long text, it
holds the GIL for seconds, which would block the event loop of its process.
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
"""Limit of CPU time per text, in seconds: the slowest 2 MB take 10 s on a slow machine."""
MEMORY_BYTES = 4 << 30
"""Limit of the process's address space, in bytes: the tokens of 2 MB take 1 GiB."""
LENGTH = struct.Struct("=Q")
"""Number of tokens of the text; followed by an `array("I")` of the requested ids."""


def ids_of_text(tokenizer: Tokenizer, text: str, special: bool, literals: Sequence[Span], keep: int) -> bytes:
    """Return the number of tokens and the ids of the last `keep`."""
    ids = tokenizer.encode(text, special, literals).ids
    return LENGTH.pack(len(ids)) + array("I", ids[-keep:]).tobytes()


def tokens_of_text(tokenizer: Tokenizer, text: str, special: bool, literals: Sequence[Span]) -> bytes:
    """Return each token with its range of bytes, as JSON. TGI counts offsets in bytes, the tokenizer in characters."""
    encoded = tokenizer.encode(text, special, literals)
    at = list(accumulate((len(character.encode()) for character in text), initial=0))
    tokens = [
        {"id": id, "text": text[start:stop], "start": at[start], "stop": at[stop]}
        for id, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True)
    ]
    return json.dumps(tokens, ensure_ascii=False, separators=(",", ":")).encode()


def main(directory: Path) -> None:
    """Serve requests; each is a line of JSON followed by the text."""
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
