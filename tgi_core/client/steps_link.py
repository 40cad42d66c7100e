"""Turns over the socket that a child was handed."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from tgi_core.client.channel import CallFailed
from tgi_core.proto.frames import HEAD, Kind, frame
from tgi_core.proto.generate.v3 import generate_pb2 as pb


class StepsLink(asyncio.Protocol):
    """One connection of turns and results, one at a time; what a `StepStream` is over gRPC. Belongs to one event loop."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[Kind, bytes]] | None = None

    async def exchange(self, message: Any) -> Any:
        """Write one message and read its answer. Raises CallFailed."""
        if self._transport.is_closing():
            raise CallFailed("the connection is closed", "", gone=True)
        self._transport.write(frame(Kind.MESSAGE, message.SerializeToString()))
        self._answer = asyncio.get_running_loop().create_future()
        try:
            kind, data = await self._answer
        except asyncio.CancelledError:
            self.close()  # an answer that nobody waits for must not pass for the next one
            raise
        if kind is Kind.FAILURE:
            self.close()
            name, _, text = data.decode().partition("\n")
            raise CallFailed(text, name, gone=False)
        return pb.TurnResult.FromString(data)

    def close(self) -> None:
        """Leave. Idempotent."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is watched."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """A part of an answer, or all of it."""
        self._received += data
        if len(self._received) < HEAD.size:
            return
        length, kind = HEAD.unpack_from(self._received)
        if len(self._received) >= HEAD.size + length:
            answer = bytes(self._received[HEAD.size : HEAD.size + length])
            del self._received[: HEAD.size + length]
            if self._answer is not None and not self._answer.done():
                self._answer.set_result((Kind(kind), answer))

    def connection_lost(self, exc: Exception | None) -> None:
        """The shard is gone, or we have left it."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(CallFailed("the connection broke", "", gone=True))


async def open_link(stream: socket.socket) -> StepsLink:
    """Talk over a socket, which is the link's from now on."""
    _, link = await asyncio.get_running_loop().create_connection(StepsLink, sock=stream)
    return link
