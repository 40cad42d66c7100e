"""Memory use of this process, exact to the byte with glibc 2.33 or newer."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from pathlib import Path

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


def _counter() -> Callable[[], int]:
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:  # not glibc, or older than 2.33
        return _resident_bytes
    mallinfo2.restype = _Mallinfo2

    def counted() -> int:
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd)

    return counted


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


used_bytes = _counter()
"""Bytes allocated on the heap of a single-threaded process; without mallinfo2, its resident memory."""
