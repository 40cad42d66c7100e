"""What a router and the shard that it started say over their socket pair: frames whose first byte is their kind.

gRPC serves shards anywhere, but costs event loops, queues and four hand-overs between threads per message: little in a step of many rows,
much in a step of few. Between parent and child a socket pair needs none of them.
"""

from __future__ import annotations

from enum import IntEnum

from tgi_core.framing import frame

MAX_BYTES = 1 << 28
"""Bytes that an answer may have: many times what a step of thousands of rows takes with every output that can be requested."""


class Kind(IntEnum):
    """The kind of a frame."""

    MESSAGE = 0
    FAILURE = 1
    """The name of an error's class, a line break, its text. The sender closes the connection after it."""


_BYTE = {kind: bytes([kind]) for kind in Kind}


def kind_frame(kind: Kind, data: bytes) -> bytes:
    """The bytes of a frame of this kind."""
    return frame(_BYTE[kind] + data)


def failure(error: Exception) -> bytes:
    """The frame that reports an error."""
    text = f"{type(error).__name__}\n{error}"
    return kind_frame(Kind.FAILURE, text.encode(errors="replace"))
