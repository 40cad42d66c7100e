"""LRU cache of compiled grammars, limited in bytes. Grammars in use are never evicted.

Small and large grammars have separate limits, so that large grammars cannot evict small ones.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tgi_core.grammar.value import GrammarsBusy

SMALL = 1 << 20
"""Maximum size of a small grammar, in bytes; typical grammars are small."""
SMALL_BYTES = 128 << 20
"""Limit for all small grammars together: the default number of concurrent requests fits."""
LARGE_BYTES = 128 << 20
"""Limit for all large grammars together."""
OVERHEAD_BYTES = 4096
"""Bookkeeping overhead per cached grammar."""

_STATE_BYTES = 2000
"""Upper estimate of bytes that a token adds to a grammar's lexer through new states; most tokens add none."""
_WORN_BYTES = 8 << 20
"""Estimated growth of a lexer after which its grammar is evicted as soon as it is unused."""

Made = TypeVar("Made")


@dataclass(slots=True, eq=False)
class Entry(Generic[Made]):
    """A grammar that is compiled or being compiled."""

    digest: bytes
    size: int
    made: Future[Made] = field(default_factory=Future)
    holds: int = 0
    grown: int = 0


class CompiledCache(Generic[Made]):
    """Reference-counted cache: each `find` or `admit` needs a `release`. Not thread-safe."""

    def __init__(self, small_bytes: int = SMALL_BYTES, large_bytes: int = LARGE_BYTES) -> None:
        self._small, self._large = _Pool[Made](small_bytes), _Pool[Made](large_bytes)

    def __len__(self) -> int:
        return len(self._small.entries) + len(self._large.entries)

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return self._small.size + self._large.size

    def find(self, digest: bytes) -> Entry[Made] | None:
        """Look up a grammar and hold its entry."""
        for pool in (self._small, self._large):
            if (entry := pool.entries.get(digest)) is not None:
                pool.entries.move_to_end(digest)
                entry.holds += 1
                return entry
        return None

    def admit(self, digest: bytes, size: int) -> Entry[Made]:
        """Add and hold an entry for a new grammar of `size` bytes. Raises GrammarsBusy if grammars in use leave no space."""
        pool = self._pool_for(size)
        size += OVERHEAD_BYTES
        pool.evict_until_fits(size)
        if pool.size + size > pool.limit:
            raise GrammarsBusy
        entry = pool.entries[digest] = Entry(digest, size, holds=1)
        pool.size += size
        entry.made.set_running_or_notify_cancel()  # so that no waiter can cancel it
        return entry

    def release(self, entry: Entry[Made], tokens: int = 0) -> None:
        """Release an entry after generating `tokens` tokens with it."""
        pool = self._of(entry)
        entry.holds -= 1
        if pool is None:
            return
        grown = tokens * _STATE_BYTES
        entry.grown, entry.size, pool.size = entry.grown + grown, entry.size + grown, pool.size + grown
        if entry.holds <= 0 and entry.grown > _WORN_BYTES:
            pool.drop(entry)
        pool.evict_until_fits(0)

    def drop(self, entry: Entry[Made]) -> None:
        """Remove an entry, even if it is held."""
        pool = self._of(entry)
        if pool is not None:
            pool.drop(entry)

    def _of(self, entry: Entry[Made]) -> _Pool[Made] | None:
        return next((pool for pool in (self._small, self._large) if pool.entries.get(entry.digest) is entry), None)

    def _pool_for(self, size: int) -> _Pool[Made]:
        return self._small if size <= SMALL else self._large


class _Pool(Generic[Made]):
    """Entries in LRU order, least recently used first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.entries: OrderedDict[bytes, Entry[Made]] = OrderedDict()

    def evict_until_fits(self, size: int) -> None:
        """Evict unheld entries until `size` more bytes fit."""
        if self.size + size <= self.limit:
            return
        for entry in [entry for entry in self.entries.values() if entry.holds <= 0]:
            self.drop(entry)
            if self.size + size <= self.limit:
                return

    def drop(self, entry: Entry[Made]) -> None:
        del self.entries[entry.digest]
        self.size -= entry.size
