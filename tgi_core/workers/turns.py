"""A semaphore with a bounded wait queue and a timeout."""

from __future__ import annotations

import asyncio


class Turns:
    """Allows `size` turns at once and `waiting` waiters, each for at most `wait_s` seconds. Use it from one event loop."""

    def __init__(self, size: int, waiting: int, wait_s: float) -> None:
        self._turns = asyncio.Semaphore(size)
        self._room, self._wait_s = waiting, wait_s

    async def take(self) -> bool:
        """Wait for a turn, to be returned with `give_back`. Returns False on timeout or if too many are waiting."""
        if self._turns.locked() and self._room <= 0:
            return False
        self._room -= 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._turns.acquire()
        except TimeoutError:
            return False
        finally:
            self._room += 1
        return True

    def give_back(self) -> None:
        """Return a turn."""
        self._turns.release()
