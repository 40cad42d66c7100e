"""Length-prefixed messages over stream sockets, for communication between this project's processes.

A frame is the payload's length in bytes (little-endian uint32) followed by the payload. `Frames` does no I/O, so that blocking
sockets and event loops can share it; `FrameSocket` adds blocking I/O. Worker processes import this module, so it uses only the
standard library.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from struct import Struct

HEAD = Struct("<I")
"""Header of a frame: the payload's length."""

MAX_BYTES = (1 << 32) - 1
"""Maximum payload length that fits into the header."""

_CHUNK = 1 << 16
_MAX_CHUNK = 1 << 20


class FrameTooLong(ValueError):
    """The peer announced a payload above the limit; the stream is no longer usable."""


def frame(payload: bytes) -> bytes:
    """Prefix a payload with its length."""
    return HEAD.pack(len(payload)) + payload


class Frames:
    """Incremental parser of frames.

    Memory grows with received data, not with the announced length.
    """

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        """Number of buffered bytes."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Append received data."""
        self._buffer += data

    def take(self, limit: int = MAX_BYTES) -> bytes | None:
        """Return the next frame's payload, or None if it is incomplete. Raises FrameTooLong for more than `limit` bytes."""
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
        """Number of bytes to read next; larger for large payloads."""
        if len(self._buffer) < HEAD.size:
            return _CHUNK
        missing: int = HEAD.unpack_from(self._buffer)[0] + HEAD.size - len(self._buffer)
        return min(max(missing, _CHUNK), _MAX_CHUNK)


class FrameSocket:
    """Frames over a blocking stream socket with no other reader."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._frames = Frames()

    def send(self, payload: bytes) -> None:
        """Send one frame. Raises OSError."""
        self._stream.sendall(frame(payload))

    def receive(self, limit: int = MAX_BYTES, timeout_s: float | None = None) -> bytes:
        """Receive the next payload.

        Raises EOFError if the peer closes the connection, TimeoutError if the frame is incomplete after `timeout_s` (received data
        is kept), FrameTooLong, OSError. Leaves the socket blocking.
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
                with suppress(OSError):  # the socket was closed
                    self._stream.settimeout(None)
        return payload
