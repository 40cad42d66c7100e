"""Permits bound how many generations are in the server at once, and share them between clients.

While there are free permits, every request is admitted. When there are none, a client that has its share is refused, and one that has less
waits briefly for the next free permit, so that no client can keep others out. A request whose client does not read generates nothing, so
its permit is free for another meanwhile. Clients without requests leave no state. Used on the event loop only.
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
"""How long a client that has less than its share waits for a permit."""
_MOST_WAITING = 64
_LONGEST_S = 60.0
_WEIGHT = 0.1
"""The weight of the latest gap in the moving average of gaps between freed permits."""


@dataclass(slots=True)
class _Waiter:
    count: int
    granted: asyncio.Future[None]


class Permits:
    """`limit` permits. They are shared equally between the clients that have one or wait for one."""

    def __init__(self, limit: int, clock: Callable[[], float] = monotonic) -> None:
        self._limit = limit
        self._most_waiting = min(max(1, limit // 4), _MOST_WAITING)
        self._clock = clock
        self.taken = 0
        self._expected = 0
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        """By client; the one whose turn is next comes first."""
        self._waiters = 0
        self._suspended: dict[Hashable, tuple[str, Callable[[], None]]] = {}
        self._gap_s = 0.0
        self._freed_at: float | None = None

    @property
    def full(self) -> bool:
        """Whether a request that arrives now gets no permit at once."""
        return self.taken + self._expected >= self._limit or self._waiters > 0

    @property
    def idle(self) -> bool:
        """Whether nobody holds, waits for or has suspended a permit, and no client is remembered."""
        return not (self.taken or self._held or self._waiting or self._suspended)

    def expect(self) -> None:
        """A request was let in that will ask for a permit soon: until then, one counts as taken."""
        if not self._expected:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._expect_nobody)
        self._expected += 1

    def _expect_nobody(self) -> None:
        self._expected = 0

    def check(self, client: str) -> None:
        """Raises ModelOverloaded if a request would be refused now. Ask before any work is done for it."""
        if self.full and self._refused(client, 1):
            raise self._overloaded()

    async def take(self, client: str, count: int, wait: bool = True) -> None:
        """Take `count` permits or none. Raises ModelOverloaded."""
        if not self._waiters and self.taken + count <= self._limit:
            self._grant(client, count)
        elif not wait or self._refused(client, count):
            raise self._overloaded()
        else:
            await self._wait(client, count)

    def give_back(self, client: str, count: int) -> None:
        """Return permits."""
        if not count:
            return
        self._forget(client, count)
        self._note_freed(count)
        self._let_in()

    def suspend(self, client: str, request: Hashable, end: Callable[[], None]) -> None:
        """A request generates nothing for now: free its permit. If too many are suspended, end one of the client that has the most."""
        if len(self._suspended) >= self._limit:
            counts = Counter(owner for owner, _ in self._suspended.values())
            most = max(counts, key=counts.__getitem__)
            next(end for owner, end in self._suspended.values() if owner == most)()
        self._suspended[request] = client, end
        self._forget(client, 1)
        self._let_in()

    def resume(self, request: Hashable) -> bool:
        """A suspended request continues or ends: it has its permit again, even beyond the limit. False if it was not suspended."""
        client, _ = self._suspended.pop(request, (None, None))
        if client is not None:
            self._grant(client, 1)
        return client is not None

    def _refused(self, client: str, count: int) -> bool:
        """Whether a client that gets no permit at once may not even wait for one."""
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
        """Grant free permits to waiting requests, taking turns between clients."""
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
        """Retry when between half and all of the present requests should be done: at random, so that clients do not retry together."""
        return ModelOverloaded(spread(min(max(self._gap_s * self.taken, 1.0), _LONGEST_S)))


def spread(seconds: float) -> float:
    """A random time from half of `seconds` to all of it, so that clients refused together do not retry together."""
    return uniform(0.5, 1.0) * seconds
