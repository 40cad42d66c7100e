"""Limit on the request bodies that a server buffers over all its connections, with eviction when it is exceeded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

_LARGE = 1 << 16
"""Bytes above which a body is large. Small bodies, which are the vast majority, are evicted last."""
_STRIDE = 1 << 14
"""Bytes that count as progress of a body, so that a trickle of single bytes does not."""


@dataclass(slots=True)
class _Body:
    give_up: Callable[[], object]
    held: int = 0
    since: int = 0
    """Bytes received since its last progress."""


class BodyBuffers:
    """Accounts for buffered bytes. Over the limit, large bodies that have made no progress for the longest time are evicted
    first: bodies that are held back on purpose, not those that keep arriving. Complete bodies are never evicted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0
        self._small: OrderedDict[Hashable, _Body] = OrderedDict()
        self._large: OrderedDict[Hashable, _Body] = OrderedDict()
        """By owner, in order of their last progress."""
        self._complete: dict[Hashable, _Body] = {}

    def grow(self, owner: Hashable, count: int, give_up: Callable[[], object]) -> None:
        """Add `count` bytes to a body. Evicted bodies are off the account on return, and their `give_up` has been called."""
        order = self._large if owner in self._large else self._small
        body = order.setdefault(owner, _Body(give_up))
        body.held += count
        body.since += count
        self.held += count
        if body.since >= _STRIDE:
            body.since = 0
            if order is self._small and body.held > _LARGE:
                del order[owner]
                self._large[owner] = body
            else:
                order.move_to_end(owner)
        while self.held > self._limit and (self._large or self._small):
            self._forget_first(self._large or self._small).give_up()

    def complete(self, owner: Hashable) -> None:
        """Mark a body as complete; it is kept until dropped. No effect if it is not held."""
        body = self._large.pop(owner, None) or self._small.pop(owner, None)
        if body is not None:
            self._complete[owner] = body

    def drop(self, owner: Hashable) -> None:
        """Remove a body that has been read or is no longer needed. No effect if it is not held."""
        body = self._large.pop(owner, None) or self._small.pop(owner, None) or self._complete.pop(owner, None)
        if body is not None:
            self.held -= body.held

    def _forget_first(self, order: OrderedDict[Hashable, _Body]) -> _Body:
        _, body = order.popitem(last=False)
        self.held -= body.held
        return body
