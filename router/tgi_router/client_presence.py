"""Detection of a disconnect on a connection that has seen a FIN or is not being read.

A client that has closed its connection and one that has half-closed it (`nc -N`, `shutdown(SHUT_WR)`) look the same: each has sent
a FIN, and neither poll nor TCP_INFO shows more until something is sent to it. The former responds with a reset, the latter accepts
the bytes. So the server sends meaningless bytes, and polls the socket for a reset: at once, and then at increasing intervals.

hyper, nginx, Node and Go take any FIN for a disconnect, and drop the response.
"""

from __future__ import annotations

import select
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

_FIRST_S, _LONGEST_S = 0.002, 1.0
"""First and maximum seconds between polls; the interval doubles each time. A reset takes a round trip to arrive."""
_RARER = 4
"""Ratio of the times of consecutive probes."""


class Presence:
    """Watches a socket that is half-closed or not being read; calls `gone` once the connection is reset."""

    def __init__(self, loop: AbstractEventLoop, sock: socket.socket, probe: Callable[[], None], gone: Callable[[], None]) -> None:
        self._loop = loop
        self._probe = probe
        self._gone = gone
        self._poll = select.poll()
        self._poll.register(sock, 0)  # errors and hang-ups are always reported
        self._begun = loop.time()
        self._next_probe = self._begun
        self._pause = _FIRST_S
        self._timer: TimerHandle | None = None

    def look(self) -> None:
        """Poll now, and schedule the next poll."""
        now = self._loop.time()
        if now >= self._next_probe:
            self._next_probe = self._begun + max(_RARER * (now - self._begun), _RARER * _FIRST_S)
            self._probe()
        self._timer = self._loop.call_later(self._pause, self.look)
        self._pause = min(2 * self._pause, _LONGEST_S)
        if self._poll.poll(0):
            self._gone()

    def end(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
