"""Work that is done a little at a time, so that each iteration of the event loop stays short.

Whatever the server does takes a few rounds: a step of the model, and letting in a request. Where hundreds of clients ask at once, and
all of them were looked at in one round, those that were let in would wait for it, and nobody would know yet who takes the last place.
Nor does one address with hundreds of connections keep those of others waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

ROUND_S = 0.001
"""How long deferred work may take in one round."""
AT_ONCE = 4
"""How many pieces of work are done at once in a round, and how many requests reach the app."""


class Rounds:
    """Does deferred work of several owners, taking turns between them; on one event loop."""

    def __init__(self) -> None:
        self._work: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        """By owner; the one whose turn is next comes first."""
        self._done = self._begun = 0
        self._scheduled = False

    def request_begun(self) -> None:
        """A piece of work has started a request, which counts toward the round."""
        self._begun += 1

    def full(self) -> bool:
        """Whether a piece of work must be deferred. Ask before each piece, since this counts it."""
        if not self._done:
            asyncio.get_running_loop().call_soon(self._begin)
        self._done += 1
        return bool(self._work) or self._done > AT_ONCE

    def later(self, owner: str, work: Callable[[], None]) -> None:
        """Defer work until its owner's turn."""
        self._work.setdefault(owner, deque()).append(work)
        self._schedule_round()

    def _schedule_round(self) -> None:
        if self._work and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run_round)

    def _begin(self) -> None:
        self._done = 0

    def _run_round(self) -> None:
        until, self._begun = monotonic() + ROUND_S, 0
        try:
            while self._work and self._begun < AT_ONCE and monotonic() < until:
                self._next()()
        finally:  # whatever one piece of work has come to
            self._scheduled = False
            self._schedule_round()

    def _next(self) -> Callable[[], None]:
        owner, own = next(iter(self._work.items()))
        work = own.popleft()
        if own:
            self._work.move_to_end(owner)
        else:
            del self._work[owner]
        return work
