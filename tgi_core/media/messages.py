"""Messages between a shard and the worker process that runs its model's processor: a line of JSON with the sizes of the binary parts, then
these parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """Images to process. `texts` are those of `MultimodalPrompt`; without any, only features are wanted."""

    texts: tuple[str, ...]
    special: bool
    images: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Encode."""
        return _pack({"texts": self.texts, "special": self.special}, self.images)

    @classmethod
    def from_bytes(cls, data: bytes) -> Job:
        """Decode."""
        head, images = _unpack(data)
        return cls(tuple(head["texts"]), head["special"], images)


@dataclass(frozen=True, slots=True)
class Answer:
    """Token ids, where each image's placeholders begin and end among them, and an item of `Request.media` per image; or an error."""

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    items: tuple[bytes, ...]
    error: str = ""

    def to_bytes(self) -> bytes:
        """Encode."""
        return _pack({"ids": self.ids, "spans": self.spans, "error": self.error}, self.items)

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """Decode."""
        head, items = _unpack(data)
        return cls(tuple(head["ids"]), tuple((start, end) for start, end in head["spans"]), items, head["error"])


def _pack(head: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    line = json.dumps(head | {"sizes": [len(blob) for blob in blobs]})
    return b"\n".join([line.encode(), b"".join(blobs)])


def _unpack(data: bytes) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    line, _, rest = data.partition(b"\n")
    head, blobs, start = json.loads(line), [], 0
    for size in head["sizes"]:
        blobs.append(rest[start : start + size])
        start += size
    return head, tuple(blobs)
