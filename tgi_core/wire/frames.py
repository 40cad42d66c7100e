"""Messages over a stream socket, for a router and the shard that it has started itself: each behind its length and what it is.

gRPC serves shards anywhere, at a price per message that a step of many rows hides and a step of few does not: event loops, queues and
four hand-overs between threads. Between parent and child a socket pair does with none.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

HEAD = Struct("<IB")
"""The length of what follows, and its `Kind`."""

LONGEST = 1 << 28
"""Bytes that an answer may have: many times what a step of thousands of rows takes, with all that may be asked for."""


class Kind(IntEnum):
    """The kind of a frame."""

    MESSAGE = 0
    FAILURE = 1
    """The name of an error's class, a line break, its text. Nothing follows it."""


def frame(kind: Kind, data: bytes) -> bytes:
    """The bytes of a frame."""
    return HEAD.pack(len(data), kind) + data


def failure(error: Exception) -> bytes:
    """The frame of an error."""
    text = f"{type(error).__name__}\n{error}"
    return frame(Kind.FAILURE, text.encode(errors="replace"))
