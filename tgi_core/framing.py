"""Length-prefixed messages over stream sockets, for processes of ours that talk to each other.

A frame is its payload's length in bytes, uint32 little-endian, then the payload. `Frames` does no I/O, so that blocking sockets and event
loops share it; `FrameSocket` is the blocking side. Worker processes import this module: it needs nothing but the standard library.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from struct import Struct

HEAD = Struct("<I")
"""The length of a payload."""

MAX_BYTES = (1 << 32) - 1
"""The longest payload that a head can announce."""

_CHUNK = 1 << 16
_MAX_CHUNK = 1 << 20


class FrameTooLong(ValueError):
    """The other side announced a payload above the limit; the stream is of no use from here on."""


def frame(payload: bytes) -> bytes:
    """A payload behind its length."""
    return HEAD.pack(len(payload)) + payload


class Frames:
    """The frames in a stream of bytes that arrives in pieces.

    Memory grows with what has arrived, never with what a head announces.
    """

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        """Bytes that have arrived and were not taken."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Append what has arrived."""
        self._buffer += data

    def take(self, limit: int = MAX_BYTES) -> bytes | None:
        """The payload of the next frame; None until all of it has arrived. Raises FrameTooLong for one of more than `limit` bytes."""
        buffer = self._buffer
        if len(buffer) < HEAD.size:
            return None
        length: int = HEAD.unpack_from(buffer)[0]
        if length > limit:
            raise FrameTooLong(f"a message of {length} bytes, {limit} are allowed")
        end = HEAD.size + length
        if len(buffer) < end:
            return None
        payload = bytes(memoryview(buffer)[HEAD.size : end])
        del buffer[:end]
        return payload

    @property
    def read_size(self) -> int:
        """How many bytes to read next: a large payload is read in large pieces."""
        if len(self._buffer) < HEAD.size:
            return _CHUNK
        missing: int = HEAD.unpack_from(self._buffer)[0] + HEAD.size - len(self._buffer)
        return min(max(missing, _CHUNK), _MAX_CHUNK)


class FrameSocket:
    """Frames over a blocking stream socket, which nobody else reads."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._frames = Frames()

    def send(self, payload: bytes) -> None:
        """Send one frame. Raises OSError."""
        self._stream.sendall(frame(payload))

    def receive(self, limit: int = MAX_BYTES, timeout_s: float | None = None) -> bytes:
        """The next payload.

        Raises EOFError if the other side closes, TimeoutError if the whole frame has not arrived in time (what has is kept),
        FrameTooLong, OSError. Leaves the socket blocking.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while (payload := self._frames.take(limit)) is None:
                if deadline is not None:
                    self._stream.settimeout(max(deadline - time.monotonic(), 0.001))
                data = self._stream.recv(self._frames.read_size)
                if not data:
                    raise EOFError("closed by the other side")
                self._frames.feed(data)
        finally:
            if deadline is not None:
                with suppress(OSError):  # closed meanwhile
                    self._stream.settimeout(None)
        return payload
