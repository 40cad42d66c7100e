"""How many generations may be in the server at once, and whose.

As long as there is room everybody is let in. When there is none, a client that has its share or more is told to come back, and one that
has less waits a moment for the next place that becomes free: so whoever fills the server cannot keep others out. What a request needs
that its client does not read is lent out: it does nothing meanwhile. Kept is only what is in the server, so that any number of clients
takes no memory. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from random import uniform
from time import monotonic

from tgi_router.errors import ModelOverloaded

WAIT_S = 5.0
"""How long a client that has less than its share waits for a place."""
_MOST_WAITING = 64
_LONGEST_S = 60.0
_WEIGHT = 0.1
"""Of the latest gap in the usual one between two places that become free."""


@dataclass(slots=True)
class _Waiter:
    count: int
    granted: asyncio.Future[None]


class Permits:
    """`limit` of them. A client's share is an equal part for each that has a permit or waits for one."""

    def __init__(self, limit: int, clock: Callable[[], float] = monotonic) -> None:
        self._limit = limit
        self._most_waiting = min(max(1, limit // 4), _MOST_WAITING)
        self._clock = clock
        self.taken = 0
        self._expected = 0
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        """By client, whose turn is next first."""
        self._waiters = 0
        self._suspended: dict[Hashable, tuple[str, Callable[[], None]]] = {}
        self._gap_s = 0.0
        self._freed_at: float | None = None

    @property
    def full(self) -> bool:
        """Whether whoever comes now finds no place."""
        return self.taken + self._expected >= self._limit or self._waiters > 0

    def expect(self) -> None:
        """Somebody was let in who will ask for a place, once those that were let in before have: until then it counts as taken."""
        if not self._expected:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._expect_nobody)
        self._expected += 1

    def _expect_nobody(self) -> None:
        self._expected = 0

    def check(self, client: str) -> None:
        """Raises ModelOverloaded if a request would be refused now: to be asked before any work is done for it."""
        if self.full and self._refused(client, 1):
            raise self._overloaded()

    async def take(self, client: str, count: int, wait: bool = True) -> None:
        """Take all or none. Raises ModelOverloaded."""
        if not self._waiters and self.taken + count <= self._limit:
            self._grant(client, count)
        elif not wait or self._refused(client, count):
            raise self._overloaded()
        else:
            await self._wait(client, count)

    def give_back(self, client: str, count: int) -> None:
        """Return what was taken."""
        if not count:
            return
        self._forget(client, count)
        self._note_freed(count)
        self._let_in()

    def suspend(self, client: str, request: Hashable, end: Callable[[], None]) -> None:
        """A request stands still: another may have its place. Of too many that do, one of the client that has most is ended."""
        if len(self._suspended) >= self._limit:
            counts = Counter(owner for owner, _ in self._suspended.values())
            most = max(counts, key=counts.__getitem__)
            next(end for owner, end in self._suspended.values() if owner == most)()
        self._suspended[request] = client, end
        self._forget(client, 1)
        self._let_in()

    def resume(self, request: Hashable) -> bool:
        """It goes on, or ends: its place is its own again, though there be one too many. False if it was not lent."""
        client, _ = self._suspended.pop(request, (None, None))
        if client is not None:
            self._grant(client, 1)
        return client is not None

    def _refused(self, client: str, count: int) -> bool:
        """Whether a client that finds no place is not even to wait for one."""
        own = self._held.get(client, 0) + sum(each.count for each in self._waiting.get(client, ()))
        others = len(self._held.keys() | self._waiting.keys() | {client})
        return self._waiters >= self._most_waiting or own + count > max(1, self._limit // others)

    async def _wait(self, client: str, count: int) -> None:
        waiter = _Waiter(count, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(waiter)
        self._waiters += 1
        try:
            async with asyncio.timeout(WAIT_S):
                await asyncio.shield(waiter.granted)
        except BaseException as error:
            if waiter.granted.done():
                self.give_back(client, count)
            else:
                self._stop_waiting(client, waiter)
            if isinstance(error, TimeoutError):
                raise self._overloaded() from None
            raise

    def _stop_waiting(self, client: str, waiter: _Waiter) -> None:
        line = self._waiting[client]
        line.remove(waiter)
        self._waiters -= 1
        if not line:
            del self._waiting[client]
        self._let_in()

    def _let_in(self) -> None:
        """Those that wait, a client after the other, as far as there is room."""
        while self._waiting:
            client, line = next(iter(self._waiting.items()))
            if self.taken + line[0].count > self._limit:
                return
            waiter = line[0]
            self._stop_waiting_granted(client, line)
            self._grant(client, waiter.count)
            waiter.granted.set_result(None)

    def _stop_waiting_granted(self, client: str, line: deque[_Waiter]) -> None:
        line.popleft()
        self._waiters -= 1
        if line:
            self._waiting.move_to_end(client)
        else:
            del self._waiting[client]

    def _grant(self, client: str, count: int) -> None:
        self.taken += count
        self._held[client] = self._held.get(client, 0) + count

    def _forget(self, client: str, count: int) -> None:
        self.taken -= count
        self._held[client] -= count
        if not self._held[client]:
            del self._held[client]

    def _note_freed(self, count: int) -> None:
        now = self._clock()
        if self._freed_at is not None and self.full:
            gap = (now - self._freed_at) / count
            self._gap_s += _WEIGHT * (gap - self._gap_s) if self._gap_s else gap
        self._freed_at = now

    def _overloaded(self) -> ModelOverloaded:
        """Come back when half of what is here, or all of it, is likely to be done: at random, so that not all come back together."""
        return ModelOverloaded(spread(min(max(self._gap_s * self.taken, 1.0), _LONGEST_S)))


def spread(seconds: float) -> float:
    """A time from half of it to all of it, so that those who are refused together do not come back together."""
    return uniform(0.5, 1.0) * seconds
