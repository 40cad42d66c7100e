"""Requests that come on one connection before the one in front of them is answered.

They are answered one after another. A few are looked at, so that their bodies may come and a client that leaves is noticed; what follows
them waits as bytes, of which no more are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tgi_router.upgrades import HttpOnlyProtocol

if TYPE_CHECKING:
    from asyncio import Transport

    from uvicorn._types import ASGI3Application

MOST_WAITING = 16
"""Requests that are looked at while one is answered."""
_PIECE = 2048
"""Bytes that are looked at in one go, however many requests they hold."""


class _Flow(FlowControl):
    """uvicorn's, whose reading can be held up."""

    held = False
    """Whether nothing more is to be read, whoever wants to go on."""

    def resume_reading(self) -> None:
        """Unless it is held up."""
        if not self.held:
            super().resume_reading()


class PipelinedProtocol(HttpOnlyProtocol):
    """A protocol with bounds on what waits. `cycle` is the request that came last, `running` the one that is being answered."""

    flow: _Flow

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.running: RequestResponseCycle | None = None
        self.unparsed = b""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Nothing has come yet."""
        super().connection_made(transport)
        self.flow = _Flow(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more: uvicorn tells only the request that came last."""
        for cycle in self.unanswered():
            self.abandon(cycle)
        self.pipeline.clear()
        super().connection_lost(exc)

    def unanswered(self) -> list[RequestResponseCycle]:
        """The request that is being answered, if one is, and those that wait, in order."""
        running = [] if self.running is None or self.running.response_complete else [self.running]
        return [*running, *(cycle for cycle, _ in reversed(self.pipeline))]

    def abandon(self, cycle: RequestResponseCycle) -> None:
        """Its handler stops, and what it still says is not sent."""
        cycle.disconnected = True
        cycle.message_event.set()

    def abandon_last(self) -> None:
        """The request that came last is not complete, and will not be."""
        self.abandon(self.cycle)
        if self.pipeline:
            self.pipeline.popleft()
            self.cycle = (self.unanswered() or [self.cycle])[-1]
        else:
            self.running = None

    def take(self, piece: bytes) -> bool:
        """Parse what comes next; whether the rest is wanted."""
        raise NotImplementedError

    def parse(self) -> None:
        """Take what has come, as far as there is room for requests."""
        data, place, wanted = self.unparsed, 0, True
        while wanted and place < len(data) and len(self.pipeline) < MOST_WAITING:
            wanted = self.take(data[place : place + _PIECE])
            place += _PIECE
        self.hold(data[place:] if wanted else b"")

    def hold(self, unparsed: bytes) -> None:
        """Read no more while there are bytes that are not parsed."""
        held, self.flow.held = self.flow.held, bool(unparsed)
        self.unparsed = unparsed
        if unparsed:
            self.flow.pause_reading()
        elif held:
            self.flow.resume_reading()

    def on_headers_complete(self) -> None:
        """A request, which may have to wait."""
        super().on_headers_complete()
        self.flow.resume_reading()  # paused for requests that wait: a client that leaves would not be noticed

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)
