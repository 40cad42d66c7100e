"""The kernel driver as its control node answers: another process has the device open."""

import ctypes
import errno
import struct
from typing import Any

REQUEST = 0xC0186440
OPEN_STATS = 18
ACTIVE = (1, 0)
"""Whether there is a context, and whether it is being released."""


def answer(file: Any, request: int, arguments: bytes, state: tuple[int, int] = ACTIVE, known: int = REQUEST) -> int:
    """`ioctl` of a driver that knows one request."""
    if request != known:
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
    pointer, size, what, _, pad = struct.unpack("=QIIII", arguments)
    assert "accel_controlD" in file.name and (what, pad) == (OPEN_STATS, 0)
    ctypes.memmove(pointer, struct.pack("=QQBB6x", 3, 1000, *state), size)
    return 0
