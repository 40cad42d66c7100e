"""Threads for Python work that grows with the body, such as validation: the interpreter lets the event loop run in between.

A single long call into a library still blocks it; use `tgi_core.workers` for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

INLINE = 1 << 14
"""Size of a body, in bytes, up to which work runs on the event loop: it takes a millisecond or two."""


class ThreadPool:
    """A pool of at most `count` threads."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="body")

    async def run(self, size: int, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work`, whose cost grows with the `size` of a body in bytes, and return its result."""
        if size <= INLINE:
            return work(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Stop accepting work. Running work finishes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
