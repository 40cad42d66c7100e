"""Turns over the socket pair that a child process inherits."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from tgi_core.backend import BackendError
from tgi_core.client.channel import CallFailed, parsed
from tgi_core.client.result_validator import invalid
from tgi_core.framing import Frames, FrameTooLong
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.wire.frames import MAX_BYTES, Kind, kind_frame

_KINDS = frozenset(bytes([kind]) for kind in Kind)


class StepsLink(asyncio.Protocol):
    """One connection of turns and results, one at a time; what a `StepStream` is over gRPC. Belongs to one event loop."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._frames = Frames()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._broken: BackendError | None = None
        """Error of the invalid answer that ended the connection, if any."""

    async def exchange(self, message: Any) -> Any:
        """Write one message and read its answer. Raises CallFailed, and BackendBug for an invalid answer."""
        if self._broken is not None:
            raise self._broken
        if self._transport.is_closing():
            raise CallFailed("the connection is closed", "", gone=True)
        self._transport.write(kind_frame(Kind.MESSAGE, message.SerializeToString()))
        self._answer = asyncio.get_running_loop().create_future()
        try:
            kind, data = await self._answer
        except asyncio.CancelledError:
            self.close()  # a late answer must not be mistaken for the next one
            raise
        if kind == Kind.FAILURE:
            self.close()
            name, _, text = data.decode(errors="replace").partition("\n")
            raise CallFailed(text, name, gone=False)
        return parsed(pb.TurnResult, data)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Handle a part of an answer, or a complete one."""
        if self._answer is None or self._answer.done():
            self._break("an answer to nothing")
            return
        self._frames.feed(data)
        try:
            payload = self._frames.take(MAX_BYTES)
        except FrameTooLong as error:
            self._break(str(error))
            return
        if payload is None:
            return
        if self._frames:
            self._break("two answers to one turn")
        elif payload[:1] not in _KINDS:
            self._break(f"a frame of {len(payload)} bytes of no known kind")
        else:
            self._answer.set_result((payload[0], payload[1:]))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending turn: the shard is lost, or this side has closed the connection."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._broken or CallFailed("the connection broke", "", gone=True))

    def _break(self, what: str) -> None:
        """End a connection that has delivered invalid data."""
        self._broken = self._broken or invalid(what)
        self._transport.abort()


async def open_link(stream: socket.socket) -> StepsLink:
    """Create a link over a socket and take ownership of it."""
    _, link = await asyncio.get_running_loop().create_connection(StepsLink, sock=stream)
    return link
