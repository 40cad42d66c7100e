"""Runs the app on servers other than this project's own, such as Ray Serve: streams are sent as ASGI messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tgi_router.extract import when_read
from tgi_router.stream_writer import StreamWriter

_HIGH_WATER = 1 << 16
"""Bytes that may wait to be sent before a stream pauses."""


class MessageWriter(StreamWriter):
    """Sends what is written as messages, in a task, in order with those of the app."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.attach(scope)
        self._send = send
        self._waiting = bytearray()
        self._written = asyncio.Event()
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.filler = b""
        self.written_at = monotonic()
        self.listeners: list[Callable[[], None]] = []

    def open(self, filler: bytes) -> None:
        """Prepare the stream."""
        self.filler = filler

    def write(self, data: bytes) -> bool:
        """Write a part of the body. Return whether to write more."""
        self.written_at = monotonic()
        self._waiting += data
        self._written.set()
        return len(self._waiting) < _HIGH_WATER

    async def send(self, message: Message) -> None:
        """Send a message of the app, after what has been written before it."""
        if message["type"] == "http.response.start":
            await self._send(message)
            self._task = asyncio.create_task(self._run())
            return
        await self._flush()
        async with self._sending:
            await self._send(message)

    async def close(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await self._task

    async def _run(self) -> None:
        while True:
            await self._written.wait()
            self._written.clear()
            await self._flush()
            self._resume()

    async def _flush(self) -> None:
        async with self._sending:
            if self._waiting:
                data = bytes(self._waiting)
                self._waiting.clear()
                await self._send({"type": "http.response.body", "body": data, "more_body": True})


def on_any_server(app: ASGIApp) -> ASGIApp:
    """Wrap an app of `create_app` for a server that only speaks ASGI."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        writer = MessageWriter(scope, send)
        when_read(scope, lambda: None)
        try:
            await app(scope, receive, writer.send)
        finally:
            await writer.close()

    return run
