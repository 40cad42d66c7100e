"""Lingering close: lets a client read the last response before its connection is closed.

If a socket is closed while the client is still sending, the kernel resets the connection, and the client loses a response that it
has not read yet. So the server half-closes the connection, and keeps reading and discarding input for a while.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable
from contextlib import suppress

SILENCE_S = 5.0
"""Seconds without input after which the connection is closed: the client has had time to read."""
LONGEST_S = 30.0
"""Maximum seconds for which input is discarded."""
MOST_BYTES = 1 << 26
"""Maximum bytes of input that are discarded."""


def half_close(transport: Transport) -> None:
    """Send no more, if the transport can say so. No effect if the client has reset the connection."""
    if transport.can_write_eof():
        with suppress(OSError):
            transport.write_eof()


class Lingering:
    """Limits the input that is discarded after the last response; calls `over` when a limit is reached."""

    def __init__(self, loop: AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop = loop
        self._over = over
        self._timer: TimerHandle | None = None
        self._until = 0.0
        self._bytes = 0
        self._heard = False

    @property
    def on(self) -> bool:
        """Whether the connection is lingering."""
        return self._timer is not None

    def begin(self) -> None:
        """Start lingering. No effect while it is on."""
        if self._timer is None:
            self._until, self._bytes, self._heard = self._loop.time() + LONGEST_S, 0, False
            self._timer = self._loop.call_later(SILENCE_S, self._look)

    def hear(self, count: int) -> None:
        """Count `count` bytes of input."""
        self._bytes += count
        self._heard = True
        if self._timer is not None and self._bytes > MOST_BYTES:
            self.end()
            self._over()

    def end(self) -> None:
        """Stop lingering: input is wanted again, or the connection is lost."""
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
    """The transport to which uvicorn writes one response. It wraps the connection's transport, but skips the part of the response
    that was sent ahead, and leaves closing to the connection, which may have to linger."""

    _BEGINNING = b"HTTP/1.1 "

    def __init__(self, transport: Transport, close: Callable[[], None]) -> None:
        self.close = close
        self.is_closing = transport.is_closing
        self._transport = transport
        self._ahead = 0

    def write(self, data: bytes) -> None:
        """Write a part of the response; the first part begins with the status line."""
        ahead, self._ahead = self._ahead, 0
        self._transport.write(data[ahead:])

    def send_ahead(self) -> None:
        """Send the next byte of `HTTP/1.1 `, with which every response begins, if any is left. Call before the first `write`
        only."""
        if self._ahead < len(self._BEGINNING):
            self._transport.write(self._BEGINNING[self._ahead : self._ahead + 1])
            self._ahead += 1
