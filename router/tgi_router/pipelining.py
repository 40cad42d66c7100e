"""HTTP pipelining: requests that a client sends before it has the response to an earlier one.

Responses are sent in the order of the requests. A few pipelined requests are parsed ahead, so that their bodies are received and a
disconnect is noticed; input after them stays unparsed, and reading pauses.
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
"""Maximum number of pipelined requests that are parsed while an earlier one is served."""
_PIECE = 2048
"""Bytes parsed at a time, however many requests they contain."""


class _Flow(FlowControl):
    """uvicorn's flow control, with a hold on reading."""

    held = False
    """Whether reading stays paused, regardless of `resume_reading`."""

    def resume_reading(self) -> None:
        """Resume reading unless it is held."""
        if not self.held:
            super().resume_reading()


class PipelinedProtocol(HttpOnlyProtocol):
    """A protocol with bounded pipelining. `cycle` is the latest request, `running` the one being served."""

    flow: _Flow

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.running: RequestResponseCycle | None = None
        self.unparsed = b""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Set up flow control."""
        super().connection_made(transport)
        self.flow = _Flow(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Abandon all unfinished requests; uvicorn notifies only the latest one."""
        for cycle in self.unanswered():
            self.abandon(cycle)
        self.pipeline.clear()
        super().connection_lost(exc)

    def unanswered(self) -> list[RequestResponseCycle]:
        """Return the request being served, if any, and the pipelined ones, in order."""
        running = [] if self.running is None or self.running.response_complete else [self.running]
        return [*running, *(cycle for cycle, _ in reversed(self.pipeline))]

    def abandon(self, cycle: RequestResponseCycle) -> None:
        """Mark a request as disconnected: its handler stops, and its further output is discarded."""
        cycle.disconnected = True
        cycle.message_event.set()

    def abandon_last(self) -> None:
        """Abandon the latest request, which will not be completed."""
        self.abandon(self.cycle)
        if self.pipeline:
            self.pipeline.popleft()
            self.cycle = (self.unanswered() or [self.cycle])[-1]
        else:
            self.running = None

    def take(self, piece: bytes) -> bool:
        """Parse `piece`; return whether to go on parsing."""
        raise NotImplementedError

    def parse(self) -> None:
        """Parse the received bytes until the limit of pipelined requests is reached."""
        data, place, wanted = self.unparsed, 0, True
        while wanted and place < len(data) and len(self.pipeline) < MOST_WAITING:
            wanted = self.take(data[place : place + _PIECE])
            place += _PIECE
        self.hold(data[place:] if wanted else b"")

    def hold(self, unparsed: bytes) -> None:
        """Keep unparsed bytes, and pause reading while there are any."""
        held, self.flow.held = self.flow.held, bool(unparsed)
        self.unparsed = unparsed
        if unparsed:
            self.flow.pause_reading()
        elif held:
            self.flow.resume_reading()

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind the one being served."""
        super().on_headers_complete()
        self.flow.resume_reading()  # uvicorn pauses it for pipelined requests, which would hide a disconnect

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)
