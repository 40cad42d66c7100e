"""Compiled grammars that are kept: those in use, and the most recent ones besides, within a number of bytes.

Small and large ones have rooms of their own, so that no number of large ones pushes a small one out.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tgi_core.grammar.value import GrammarsBusy

SMALL = 1 << 20
"""Bytes of the largest grammar that is small; all usual ones are."""
SMALL_BYTES = 128 << 20
"""Room for all small ones: as many as there may be requests by default."""
LARGE_BYTES = 128 << 20
"""Room for all large ones."""
OVERHEAD_BYTES = 4096
"""That a kept grammar takes besides itself."""

_STATE_BYTES = 2000
"""That a token may add to a grammar's lexer, as new states do; most tokens add nothing."""
_WORN_BYTES = 8 << 20
"""A lexer that may have grown by so much is dropped once nobody uses it."""

Made = TypeVar("Made")


@dataclass(slots=True, eq=False)
class Entry(Generic[Made]):
    """A grammar that is compiled, or is being compiled."""

    digest: bytes
    size: int
    made: Future[Made] = field(default_factory=Future)
    holds: int = 0
    grown: int = 0


class CompiledCache(Generic[Made]):
    """Not thread-safe. What is found or admitted is held, and is kept until it has been released as often."""

    def __init__(self, small_bytes: int = SMALL_BYTES, large_bytes: int = LARGE_BYTES) -> None:
        self._small, self._large = _Room[Made](small_bytes), _Room[Made](large_bytes)

    def __len__(self) -> int:
        return len(self._small.entries) + len(self._large.entries)

    @property
    def size(self) -> int:
        """Of all that is kept."""
        return self._small.size + self._large.size

    def find(self, digest: bytes) -> Entry[Made] | None:
        """Hold what is kept of a grammar."""
        for room in (self._small, self._large):
            if (entry := room.entries.get(digest)) is not None:
                room.entries.move_to_end(digest)
                entry.holds += 1
                return entry
        return None

    def admit(self, digest: bytes, size: int) -> Entry[Made]:
        """Hold a place for a grammar of that many bytes that is not there yet. Raises GrammarsBusy when those in use leave none."""
        room = self._room(size)
        size += OVERHEAD_BYTES
        room.make_way(size)
        if room.size + size > room.limit:
            raise GrammarsBusy
        entry = room.entries[digest] = Entry(digest, size, holds=1)
        room.size += size
        entry.made.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it
        return entry

    def release(self, entry: Entry[Made], tokens: int = 0) -> None:
        """Hold it no longer, after so many tokens."""
        room = self._of(entry)
        entry.holds -= 1
        if room is None:
            return
        grown = tokens * _STATE_BYTES
        entry.grown, entry.size, room.size = entry.grown + grown, entry.size + grown, room.size + grown
        if entry.holds <= 0 and entry.grown > _WORN_BYTES:
            room.drop(entry)
        room.make_way(0)

    def drop(self, entry: Entry[Made]) -> None:
        """Keep it no longer, though it be held."""
        room = self._of(entry)
        if room is not None:
            room.drop(entry)

    def _of(self, entry: Entry[Made]) -> _Room[Made] | None:
        return next((room for room in (self._small, self._large) if room.entries.get(entry.digest) is entry), None)

    def _room(self, size: int) -> _Room[Made]:
        return self._small if size <= SMALL else self._large


class _Room(Generic[Made]):
    """The least recently used first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.entries: OrderedDict[bytes, Entry[Made]] = OrderedDict()

    def make_way(self, size: int) -> None:
        """Drop what is not held, as far as it must be dropped for so many bytes more."""
        if self.size + size <= self.limit:
            return
        for entry in [entry for entry in self.entries.values() if entry.holds <= 0]:
            self.drop(entry)
            if self.size + size <= self.limit:
                return

    def drop(self, entry: Entry[Made]) -> None:
        del self.entries[entry.digest]
        self.size -= entry.size
