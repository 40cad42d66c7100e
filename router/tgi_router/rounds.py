"""Work that is done a little at a time, so that each round of the event loop stays short.

Whatever the server does takes a few rounds: a step of the model, and letting in a request. Where hundreds of clients ask at once, and
all of them were looked at in one round, those that were let in would wait for it, and nobody would know yet who takes the last place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

ROUND_S = 0.001
"""How long a round may take for what came late."""
AT_ONCE = 4
"""So many pieces of work are done at once in a round, and so many requests get to the app."""


class Rounds:
    """First come, first served; on one event loop."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._done = self._begun = 0

    def request_begun(self) -> None:
        """The work has led to more, which others are to wait for as well."""
        self._begun += 1

    def full(self) -> bool:
        """Whether what comes now must wait for its turn. To be asked before each piece of work, since it counts."""
        if not self._done:
            asyncio.get_running_loop().call_soon(self._begin)
        self._done += 1
        return bool(self._work) or self._done > AT_ONCE

    def later(self, work: Callable[[], None]) -> None:
        """Have it called in its turn."""
        if not self._work:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._work.append(work)

    def _begin(self) -> None:
        self._done = 0

    def _go_on(self) -> None:
        until, self._begun = monotonic() + ROUND_S, 0
        while self._work:
            self._work.popleft()()
            if self._begun >= AT_ONCE or monotonic() >= until:
                break
        if self._work:
            asyncio.get_running_loop().call_soon(self._go_on)
