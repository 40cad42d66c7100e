"""Frames between a router and the shard that it has started, over a socket pair. The first byte is the frame's kind.

gRPC works for shards anywhere, but costs event loops, queues and four hand-overs between threads per message: negligible for a
step of many rows, significant for a step of few. A socket pair between parent and child needs none of them.
"""

from __future__ import annotations

from enum import IntEnum

from tgi_core.framing import frame

MAX_BYTES = 1 << 28
"""Maximum bytes of an answer: many times the size for a step of thousands of rows with every output that can be requested."""


class Kind(IntEnum):
    """Kind of a frame."""

    MESSAGE = 0
    FAILURE = 1
    """Class name of an error, a line break, its message. The sender closes the connection after it."""


_BYTE = {kind: bytes([kind]) for kind in Kind}


def kind_frame(kind: Kind, data: bytes) -> bytes:
    """Encode a frame of this kind."""
    return frame(_BYTE[kind] + data)


def failure(error: Exception) -> bytes:
    """Encode the frame that reports an error."""
    text = f"{type(error).__name__}\n{error}"
    return kind_frame(Kind.FAILURE, text.encode(errors="replace"))
