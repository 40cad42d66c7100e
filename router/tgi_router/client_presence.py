"""Whether a client that is not heard any more is still there to read.

A client that has closed its connection and one that has only ended its own side (`nc -N`, `shutdown(SHUT_WR)`) look the same: each has
sent a FIN, and neither poll nor TCP_INFO knows more until something is sent to it. The first answers that with a reset, the second takes
it. So it is sent something that means nothing, and the kernel is asked whether a reset has come: at once, and then ever more rarely.

hyper, nginx, Node and Go take any FIN for a client that has left, and drop its answer.
"""

from __future__ import annotations

import select
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

_FIRST_S, _LONGEST_S = 0.002, 1.0
"""Between looks, each time twice as long: a reset takes as long as the way to the client and back."""
_RARER = 4
"""Each probe comes this many times as late as the one before it."""


class Presence:
    """Watches a socket whose client has ended its side, or is not read; calls `gone` once the connection turns out to be reset."""

    def __init__(self, loop: AbstractEventLoop, sock: socket.socket, probe: Callable[[], None], gone: Callable[[], None]) -> None:
        self._loop = loop
        self._probe = probe
        self._gone = gone
        self._poll = select.poll()
        self._poll.register(sock, 0)  # errors and hang-ups are told unasked
        self._begun = loop.time()
        self._next_probe = self._begun
        self._pause = _FIRST_S
        self._timer: TimerHandle | None = None

    def look(self) -> None:
        """Look now, and again later."""
        now = self._loop.time()
        if now >= self._next_probe:
            self._next_probe = self._begun + max(_RARER * (now - self._begun), _RARER * _FIRST_S)
            self._probe()
        self._timer = self._loop.call_later(self._pause, self.look)
        self._pause = min(2 * self._pause, _LONGEST_S)
        if self._poll.poll(0):
            self._gone()

    def end(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
