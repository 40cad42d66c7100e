"""The shortest way for the body of a streamed answer: into its connection, in the turn of whoever has made it.

ASGI's way costs a task that wakes up, a message and a walk through every layer of the app for each token. The head of an answer and
its end still take it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_KEY = "tgi.outlet"
"""The name of the extension to ASGI."""

WhenWritable = Callable[[Callable[[], None]], None]
"""Has a function called once the connection can be written to again."""


class Outlet:
    """Of one request, once the head of its answer has been sent."""

    def __init__(self, cycle: RequestResponseCycle, when_writable: WhenWritable) -> None:
        scope: Any = cycle.scope
        scope.setdefault("extensions", {})[_KEY] = self
        self._cycle = cycle
        self._when_writable = when_writable
        self.written_at = monotonic()
        self.listeners: list[Callable[[], None]] = []
        """Called when there is room again, after a no of `write`."""

    @classmethod
    def of(cls, scope: Scope) -> Outlet:
        """That of a request, whose server is made of `Connection`s."""
        outlet: Outlet = scope["extensions"][_KEY]
        return outlet

    def write(self, data: bytes) -> bool:
        """Write a part of the body, however full the connection is; whether there is room for more. What nobody reads is dropped."""
        cycle = self._cycle
        if cycle.disconnected or not data:
            return True
        self.written_at = monotonic()
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        if not cycle.flow.write_paused:
            return True
        self._when_writable(self._go_on)
        return False

    def _go_on(self) -> None:
        for listener in self.listeners:
            listener()
