"""How a connection ends so that its client gets to read the last answer.

Closed while bytes of the client's are on their way, the kernel resets the connection, and the client loses an answer that it has not read
yet. So the server says that it has no more to say, and reads on for a while what it does not want.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable

SILENCE_S = 5.0
"""A client that sends nothing for so long has had its time to read."""
LONGEST_S = 30.0
"""So long it may go on sending."""
MOST_BYTES = 1 << 26
"""So much it may send."""


class Lingering:
    """Counts what a client sends that nobody will read; calls `over` when it is enough."""

    def __init__(self, loop: AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop = loop
        self._over = over
        self._timer: TimerHandle | None = None
        self._until = 0.0
        self._bytes = 0
        self._heard = False

    @property
    def on(self) -> bool:
        """Whether it has begun and not ended."""
        return self._timer is not None

    def begin(self) -> None:
        """From now on nobody reads. Harmless while it is on."""
        if self._timer is None:
            self._until, self._bytes, self._heard = self._loop.time() + LONGEST_S, 0, False
            self._timer = self._loop.call_later(SILENCE_S, self._look)

    def hear(self, count: int) -> None:
        """The client has sent more."""
        self._bytes += count
        self._heard = True
        if self._timer is not None and self._bytes > MOST_BYTES:
            self.end()
            self._over()

    def end(self) -> None:
        """What comes now is wanted, or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._heard and self._loop.time() < self._until:
            self._heard = False
            self._timer = self._loop.call_later(SILENCE_S, self._look)
        else:
            self._timer = None
            self._over()


class AnswerTransport:
    """What uvicorn writes one answer to: the transport of its connection, but for both ends of the answer. Its beginning may have been
    sent ahead, and closing is the connection's, which may have to linger."""

    _BEGINNING = b"HTTP/1.1 "

    def __init__(self, transport: Transport, close: Callable[[], None]) -> None:
        self.close = close
        self.is_closing = transport.is_closing
        self._transport = transport
        self._ahead = 0

    def write(self, data: bytes) -> None:
        """A part of the answer, the first of which is a status line."""
        ahead, self._ahead = self._ahead, 0
        self._transport.write(data[ahead:])

    def send_ahead(self) -> None:
        """Send a byte of what any answer begins with, while there is one. To be called before the first `write`."""
        if self._ahead < len(self._BEGINNING):
            self._transport.write(self._BEGINNING[self._ahead : self._ahead + 1])
            self._ahead += 1
