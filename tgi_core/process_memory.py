"""Memory of this process that it no longer needs."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_DONTNEED = 4
"""MADV_DONTNEED of madvise(2) on Linux."""
_MAPS = Path("/proc/self/maps")
_CODE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \S+ +/\S*\.so[\d.]*$", re.MULTILINE)
"""Code of a shared library, which is never written to."""


def trim_heap() -> None:
    """Return freed memory to the system. glibc keeps what is freed between objects that stay. Does nothing with other C libraries."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def forget_code() -> None:
    """Unmap the pages of shared libraries' code; those that are needed again come back from the system's page cache, 16 at a time.

    Importing and loading run through much code that serving does not: of torch alone, 80 MiB. Does nothing on other systems than Linux.
    """
    libc = ctypes.CDLL(None)
    if not _MAPS.exists() or not hasattr(libc, "madvise"):
        return
    for found in _CODE.finditer(_MAPS.read_text()):
        start, end = int(found[1], 16), int(found[2], 16)
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONTNEED)
