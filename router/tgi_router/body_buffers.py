"""How much of request bodies a server holds, over all its connections, until they are read, and whose goes first when it is too much."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

_LARGE = 1 << 16
"""Bytes from which on a body is large. The small ones, which are nearly all, go last."""
_STRIDE = 1 << 14
"""A body has come on once so much more of it is there: a byte now and then does not count."""


@dataclass(slots=True)
class _Body:
    give_up: Callable[[], object]
    held: int = 0
    since: int = 0
    """Bytes since it last came on."""


class BodyBuffers:
    """An account in bytes. When it is overdrawn, the large body that has not come on for the longest is given up, and so forth: of many
    that are held back on purpose these, while one that is being sent gets through. One that is there in full stays."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0
        self._small: OrderedDict[Hashable, _Body] = OrderedDict()
        self._large: OrderedDict[Hashable, _Body] = OrderedDict()
        """By what they belong to; those that have come on last are at the end."""
        self._complete: dict[Hashable, _Body] = {}

    def grow(self, owner: Hashable, count: int, give_up: Callable[[], object]) -> None:
        """More of a body is there. Bodies that must go are out of the account when this returns, and their `give_up` has been called."""
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
        """A body is there in full, and held until it is dropped. Harmless for one that is not held."""
        body = self._large.pop(owner, None) or self._small.pop(owner, None)
        if body is not None:
            self._complete[owner] = body

    def drop(self, owner: Hashable) -> None:
        """A body has been read, or nobody wants it any more. Harmless for one that is not held."""
        body = self._large.pop(owner, None) or self._small.pop(owner, None) or self._complete.pop(owner, None)
        if body is not None:
            self.held -= body.held

    def _forget_first(self, order: OrderedDict[Hashable, _Body]) -> _Body:
        _, body = order.popitem(last=False)
        self.held -= body.held
        return body
