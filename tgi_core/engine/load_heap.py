"""The process's memory while a model is loaded.

Loading allocates and frees several times a model's size. glibc keeps what is freed below its top, and later serves large temporaries of
steps from there, each from another place: measured, a model of 1.6 GB then took up to 0.9 GB more than its steps use at a time.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from tgi_core.process_memory import forget_code, trim_heap

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
_LOADING = 1 << 20
_SERVING = 32 << 20
"""Bytes from which an allocation is mapped by itself, and so returned when it is freed. The greater one is where glibc's own, which adapts,
ends up once a step has freed as much: below it, memory stays for the next step."""


@contextmanager
def load_heap() -> Iterator[None]:
    """Loading inside leaves neither free memory of the heap behind, with glibc, nor code that only imports or loading need."""
    libc = ctypes.CDLL(None)
    adjustable = hasattr(libc, "mallopt")
    forget_code()
    if adjustable:
        libc.mallopt(_MMAP_THRESHOLD, _LOADING)
    try:
        yield
    finally:
        gc.collect()  # modules that were replaced refer to each other
        if adjustable:
            libc.mallopt(_MMAP_THRESHOLD, _SERVING)
            libc.mallopt(_TRIM_THRESHOLD, 2 * _SERVING)
        trim_heap()
        forget_code()
