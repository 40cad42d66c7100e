"""The shortest way for the body of a streamed answer: into its connection, in the turn of whoever has made it.

ASGI's way costs a task that wakes up, a message and a walk through every layer of the app for each token. The head of an answer and
its end still take it.
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
"""Has a function called once the connection can be written to again."""


class StreamWriter:
    """Of one request, once the head of its answer has been sent."""

    def __init__(self, cycle: RequestResponseCycle, transport: Transport, when_writable: WhenWritable) -> None:
        scope: Any = cycle.scope
        scope.setdefault("extensions", {})[_KEY] = self
        self._cycle = cycle
        self._transport = transport
        self._chunked = True
        self.filler = b""
        """What means nothing between two writes."""
        self._when_writable = when_writable
        self.written_at = monotonic()
        self.listeners: list[Callable[[], None]] = []
        """Called when there is room again, after a no of `write`."""

    @classmethod
    def of(cls, scope: Scope) -> StreamWriter:
        """That of a request, whose server is made of `Connection`s."""
        writer: StreamWriter = scope["extensions"][_KEY]
        return writer

    def open(self, filler: bytes) -> None:
        """To be called before the head of an answer that is streamed. A client of HTTP/1.0 knows no chunks: its answer ends with the
        connection. `filler` is what means nothing between two writes."""
        self.filler = filler
        if self._cycle.scope["http_version"] == "1.0":
            self._chunked = self._cycle.chunked_encoding = False

    def fill(self) -> None:
        """Write what means nothing."""
        self.write(self.filler)

    def write(self, data: bytes) -> bool:
        """Write a part of the body, however full the connection is; whether there is room for more. What nobody reads is dropped."""
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
