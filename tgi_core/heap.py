"""The C library's heap."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Return freed memory to the system. glibc keeps what is freed between objects that stay. Does nothing with other C libraries."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
