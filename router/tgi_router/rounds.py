"""Spreads work over event loop iterations, so that each iteration stays short.

A model step and the admission of a request each take several iterations. If one iteration parsed the requests of hundreds of
clients at once, the admitted ones would wait for it, and no permit would be taken yet when the last request is parsed. Taking
turns by address keeps an address with hundreds of connections from delaying the others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

ROUND_S = 0.001
"""Time limit for deferred work in one round, in seconds."""
AT_ONCE = 4
"""Maximum number of pieces of work per round that run without being deferred, and of requests that start."""


class Rounds:
    """Runs deferred work of several owners in turns; used on one event loop."""

    def __init__(self) -> None:
        self._work: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        """By owner; the next in turn is first."""
        self._done = self._begun = 0
        self._scheduled = False

    def request_begun(self) -> None:
        """Count a request that a piece of work has started toward the round."""
        self._begun += 1

    def full(self) -> bool:
        """Return whether a piece of work must be deferred. Call once before each piece, since this counts it."""
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
        finally:  # even if a piece of work raised
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
