"""Answers that are streams of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tgi_router.disconnect import while_connected

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE_SECONDS = 15.0
_COMMENT = b":\n\n"
_BURST = 4
"""After so many chunks others get their turn: with a backlog neither the source nor the server waits, and nobody would notice
that the client has left."""


OPENED = b""
"""An empty chunk, which is not sent: a stream begins with it once nothing is left that could be told by a status."""


def event(payload: str) -> bytes:
    """One event. JSON text holds no line break, so one line is enough."""
    return f"data: {payload}\n\n".encode()


class EventStream(Response):
    """Sends `events` as they come, and a comment when none came for a while. Closes `events` once the client has left."""

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**headers, "content-type": "text/event-stream", "cache-control": "no-cache"})
        self._events = events
        self._last_sent = 0.0
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):  # it may have begun before this
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_all(receive, send)

    async def _send_all(self, receive: Receive, send: Send) -> None:
        keep_alive = asyncio.create_task(self._keep_alive(send))
        try:
            async with while_connected(receive):
                async for chunk in self._events:
                    if chunk:
                        await self._send(send, chunk)
                keep_alive.cancel()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            keep_alive.cancel()

    async def _send(self, send: Send, chunk: bytes) -> None:
        self._last_sent = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._sent += 1
        if self._sent % _BURST == 0:
            await asyncio.sleep(0)

    async def _keep_alive(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        self._last_sent = clock()
        while True:
            silent_for = clock() - self._last_sent
            if silent_for < KEEP_ALIVE_SECONDS:
                await asyncio.sleep(KEEP_ALIVE_SECONDS - silent_for)
            else:
                await self._send(send, _COMMENT)
