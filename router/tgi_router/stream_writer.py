"""Writes the body of a streamed answer straight to its connection, in the callback that produced it.

ASGI would cost a task switch, a message and a pass through every layer of the app for each token. Only the head and the end of an answer
go through it.
"""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Callable
from time import monotonic
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_KEY = "tgi.writer"
"""The name of the extension to ASGI."""

WhenWritable = Callable[[Callable[[], None]], None]
"""Calls a function once the connection can be written to again."""


class StreamWriter:
    """The writer of one request, once the head of its answer has been sent."""

    def __init__(self, cycle: RequestResponseCycle, transport: Transport, when_writable: WhenWritable) -> None:
        scope: Any = cycle.scope
        scope.setdefault("extensions", {})[_KEY] = self
        self._cycle = cycle
        self._transport = transport
        self._chunked = True
        self.filler = b""
        """Bytes that mean nothing between two writes: a comment."""
        self._when_writable = when_writable
        self.written_at = monotonic()
        self.listeners: list[Callable[[], None]] = []
        """Called when there is room again after `write` has returned false."""

    @classmethod
    def of(cls, scope: Scope) -> StreamWriter:
        """The writer of a request, on a server that uses `Connection`."""
        writer: StreamWriter = scope["extensions"][_KEY]
        return writer

    def open(self, filler: bytes) -> None:
        """Call this before the head of a streamed answer. HTTP/1.0 has no chunked encoding: there the answer ends with the connection.
        `filler` is bytes that mean nothing between two writes."""
        self.filler = filler
        if self._cycle.scope["http_version"] == "1.0":
            self._chunked = self._cycle.chunked_encoding = False

    def fill(self) -> None:
        """Write the filler."""
        self.write(self.filler)

    def write(self, data: bytes) -> bool:
        """Write a part of the body, however full the connection is; returns whether there is room for more. Drops it after a disconnect."""
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
