"""Writes the body of a streamed response directly to its connection, in the callback that produced it.

ASGI would cost a task switch, a message and a pass through every layer of the app for each token. Only the head and the end of a
response go through it.
"""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Callable
from time import monotonic
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_KEY = "tgi.writer"
"""Name of the ASGI extension."""

WhenWritable = Callable[[Callable[[], None]], None]
"""Registers a function to call once the connection is writable again."""


class StreamWriter:
    """Writes the body of one response, once its head has been sent."""

    def __init__(self, cycle: RequestResponseCycle, transport: Transport, when_writable: WhenWritable) -> None:
        self.attach(cycle.scope)
        self._cycle = cycle
        self._transport = transport
        self._chunked = True
        self.filler = b""
        """Bytes that have no meaning between two writes, such as a comment."""
        self._when_writable = when_writable
        self.written_at = monotonic()
        self.listeners: list[Callable[[], None]] = []
        """Called when the connection is writable again after `write` has returned False."""

    def attach(self, scope: Any) -> None:
        """Make this the writer of a request."""
        scope.setdefault("extensions", {})[_KEY] = self

    @classmethod
    def of(cls, scope: Scope) -> StreamWriter:
        """Return the writer of a request, on a server that uses `Connection` or `on_any_server`."""
        writer: StreamWriter = scope["extensions"][_KEY]
        return writer

    def open(self, filler: bytes) -> None:
        """Prepare the stream; call before the head of the response is sent. HTTP/1.0 has no chunked encoding: there the end of the
        connection ends the response. `filler`: bytes that have no meaning between two writes."""
        self.filler = filler
        if self._cycle.scope["http_version"] == "1.0":
            self._chunked = self._cycle.chunked_encoding = False

    def fill(self) -> None:
        """Write the filler."""
        self.write(self.filler)

    def write(self, data: bytes) -> bool:
        """Write a part of the body, even if the write buffer is full. Return whether to write more. Drops `data` after a
        disconnect."""
        cycle = self._cycle
        if cycle.disconnected or not data:
            return True
        self.written_at = monotonic()
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if not cycle.flow.write_paused:
            return True
        self._when_writable(self._resume)
        return False

    def _resume(self) -> None:
        for listener in self.listeners:
            listener()
