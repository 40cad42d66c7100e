"""Server-sent events (SSE): responses that are streams of events, with a keep-alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from time import monotonic

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tgi_router.disconnect import while_connected
from tgi_router.stream_writer import StreamWriter

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE_SECONDS = 15.0
_COMMENT = b":\n\n"

OPENED = b""
"""An empty chunk, which is not sent. A stream yields it first, when all errors that have an HTTP status are ruled out."""


def event(payload: str) -> bytes:
    """Format one event. JSON text contains no line breaks, so one line suffices."""
    return f"data: {payload}\n\n".encode()


def named_event(name: str, payload: str) -> bytes:
    """Format one event with a name."""
    return f"event: {name}\ndata: {payload}\n\n".encode()


class EventStream(Response):
    """Sends the events that `events` yields, or writes to the writer, and a comment after a while without any. Closes `events`
    when the client disconnects."""

    def __init__(self, events: AsyncGenerator[bytes, None], writer: StreamWriter, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**headers, "content-type": "text/event-stream", "cache-control": "no-cache"})
        self._events = events
        self._writer = writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._writer.open(_COMMENT)
        async with aclosing(self._events):  # its generator may have been started already
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_all(receive, send)

    async def _send_all(self, receive: Receive, send: Send) -> None:
        keep_alive = asyncio.create_task(self._keep_alive())
        try:
            async with while_connected(receive):
                async for chunk in self._events:
                    self._writer.write(chunk)
                keep_alive.cancel()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            keep_alive.cancel()

    async def _keep_alive(self) -> None:
        wait = KEEP_ALIVE_SECONDS
        while True:
            await asyncio.sleep(wait)
            silent_for = monotonic() - self._writer.written_at
            wait = KEEP_ALIVE_SECONDS - silent_for
            if wait <= 0:
                self._writer.fill()  # no effect if the client has just disconnected
                wait = KEEP_ALIVE_SECONDS
