"""Threads for work of our own that grows with a body, such as judging it: the interpreter lets the event loop run in between.

What a library does in one call holds it up all the same; that belongs to `tgi_core.workers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

INLINE = 1 << 14
"""Work on a body of at most this many bytes is done at once: it takes a millisecond or two."""


class Workers:
    """At most `count` threads."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="body")

    async def run(self, size: int, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of `work`, whose cost grows with the `size` of a body in bytes."""
        if size <= INLINE:
            return work(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Take no more work; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
