"""The prefix cache: an index from hashed prefixes to full blocks of the KV cache, evicted least recently used first.

A block's key is a keyed hash over everything before its end: salt, adapter, tokens and images, chained from block to block. The key of the
hash is drawn when the process starts, so no client can make two prompts collide. An entry is held by the rows that use its blocks.
An entry without holders is idle: it stays for the next prompt with that prefix, and is evicted, least recently used first, when
blocks run out.
"""

from __future__ import annotations

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

_DIGEST = 16


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image in a prompt: its placeholders are among the tokens start…end − 1. `digest` (16 bytes) identifies it."""

    start: int
    end: int
    digest: bytes


def span_of_all(tokens: Sequence[int], images: Sequence[ImageSpan]) -> ImageSpan:
    """Return a span over all tokens of a prompt, which stands for these tokens and images."""
    digest = blake2b(array("q", tokens).tobytes(), digest_size=_DIGEST)
    for image in images:
        digest.update(image.digest)
    return ImageSpan(0, len(tokens), digest.digest())


class Entry:
    """A block with known content. `holders` is the number of rows that use it."""

    __slots__ = ("block", "holders", "key")

    def __init__(self, key: bytes, block: int) -> None:
        self.key = key
        self.block = block
        self.holders = 1


class PrefixIndex:
    """Entries of one cache group by key. Their blocks are neither free nor owned by a row. Indexes with the same `secret` (16 bytes) have
    the same keys."""

    def __init__(self, block_size: int, secret: bytes | None = None) -> None:
        self.block_size = block_size
        self.secret = secret or secrets.token_bytes(_DIGEST)
        self.entries: dict[bytes, Entry] = {}
        self.unheld: OrderedDict[bytes, Entry] = OrderedDict()

    @property
    def idle(self) -> int:
        """Entries without holders."""
        return len(self.unheld)

    def root(self, salt: str, adapter: str | None) -> bytes:
        """Return the root key, from which the first block's key is derived: prompts with different salts or adapters share no
        keys."""
        parts = [salt.encode(), b"\0" if adapter is None else b"\1" + adapter.encode()]
        return self._hash(b"".join(len(part).to_bytes(8, "little") + part for part in parts))

    def extend(self, keys: list[bytes], root: bytes, tokens: Sequence[int], count: int, images: Sequence[ImageSpan] = ()) -> None:
        """Append to `keys` until there is one for each of the first `count` full blocks of `tokens`. Placeholders of different images are
        the same tokens, so a block's key also depends on the images that it contains a part of."""
        size = self.block_size
        for place in range(len(keys), count):
            start, end = place * size, (place + 1) * size
            block = array("q", tokens[start:end]).tobytes()
            inside = b"".join(image.digest for image in images if image.start < end and image.end > start)
            keys.append(self._hash((keys[-1] if keys else root) + block + inside))

    def find(self, keys: Sequence[bytes]) -> list[Entry]:
        """Return the entries of the longest known prefix, and add a holder to each."""
        found: list[Entry] = []
        for key in keys:
            entry = self.entries.get(key)
            if entry is None:
                break
            self.hold(entry)
            found.append(entry)
        return found

    def add(self, key: bytes, block: int) -> Entry | None:
        """Add an entry with a row's block, held by the row. Return None if the prefix is already known with another block; the
        given one then remains the row's own."""
        if key in self.entries:
            return None
        entry = self.entries[key] = Entry(key, block)
        return entry

    def hold(self, entry: Entry) -> None:
        """Add a holder to an entry."""
        if not entry.holders:
            del self.unheld[entry.key]
        entry.holders += 1

    def drop(self, entry: Entry) -> None:
        """Remove a holder from an entry. Drop a row's last entry first, so that prefixes outlive their continuations."""
        entry.holders -= 1
        if not entry.holders:
            self.unheld[entry.key] = entry

    def evict(self) -> int:
        """Evict the least recently used idle entry and return its block. Raises KeyError if no entry is idle."""
        key, entry = self.unheld.popitem(last=False)
        del self.entries[key]
        return entry.block

    def _hash(self, data: bytes) -> bytes:
        return blake2b(data, digest_size=_DIGEST, key=self.secret).digest()
