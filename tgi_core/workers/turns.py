"""Turns at something that few may use at once; those who wait are few too, and wait for a bounded time."""

from __future__ import annotations

import asyncio


class Turns:
    """`size` at once; `waiting` may wait, each for `wait_s` seconds at most. Used on one event loop."""

    def __init__(self, size: int, waiting: int, wait_s: float) -> None:
        self._turns = asyncio.Semaphore(size)
        self._room, self._wait_s = waiting, wait_s

    async def take(self) -> bool:
        """Wait for a turn, which is to be given back; False when too many wait, or this one has waited for too long."""
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
        """Let the next one in."""
        self._turns.release()
