"""A semaphore with a bounded wait queue and a timeout."""

from __future__ import annotations

import asyncio


class LimitedSemaphore:
    """Admits `size` holders at once and `waiting` waiters, each for at most `wait_s` seconds. Use it from one event loop."""

    def __init__(self, size: int, waiting: int, wait_s: float) -> None:
        self._semaphore = asyncio.Semaphore(size)
        self._free_places, self._wait_s = waiting, wait_s

    async def acquire(self) -> bool:
        """Wait for a place, to be returned with `release`. Returns False on timeout or if too many are waiting."""
        if self._semaphore.locked() and self._free_places <= 0:
            return False
        self._free_places -= 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._semaphore.acquire()
        except TimeoutError:
            return False
        finally:
            self._free_places += 1
        return True

    def release(self) -> None:
        """Return a place."""
        self._semaphore.release()
