"""Permits, which limit the number of concurrent generations (429 beyond it) and share it between clients.

While permits are free, every request is admitted. When none are, a client that holds its share is rejected, and one that holds
less waits briefly for the next free permit, so that no client can lock out others. A request whose client does not read generates
nothing, so its permit is freed meanwhile. Clients without requests leave no state. Used on the event loop only.
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
"""Seconds for which a client that holds less than its share waits for a permit."""
_MOST_WAITING = 64
_LONGEST_S = 60.0
_WEIGHT = 0.1
"""Weight of the latest interval in the moving average of intervals between freed permits."""


@dataclass(slots=True)
class _Waiter:
    count: int
    granted: asyncio.Future[None]


class Permits:
    """`limit` permits, shared equally between the clients that hold one or wait for one."""

    def __init__(self, limit: int, clock: Callable[[], float] = monotonic) -> None:
        self._limit = limit
        self._most_waiting = min(max(1, limit // 4), _MOST_WAITING)
        self._clock = clock
        self.taken = 0
        self._expected = 0
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        """By client; the next in turn is first."""
        self._waiters = 0
        self._suspended: dict[Hashable, tuple[str, Callable[[], None]]] = {}
        self._gap_s = 0.0
        self._freed_at: float | None = None

    @property
    def full(self) -> bool:
        """Whether a new request would have to wait for a permit."""
        return self.taken + self._expected >= self._limit or self._waiters > 0

    @property
    def idle(self) -> bool:
        """Whether no permit is held, awaited or suspended, and no client is remembered."""
        return not (self.taken or self._held or self._waiting or self._suspended)

    def expect(self) -> None:
        """Count a permit as taken for a request that was let in and will acquire it shortly."""
        if not self._expected:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._expect_nobody)
        self._expected += 1

    def _expect_nobody(self) -> None:
        self._expected = 0

    def check(self, client: str) -> None:
        """Check whether a request would be rejected now, before any work is done for it. Raises ModelOverloaded."""
        if self.full and self._refused(client, 1):
            raise self._overloaded()

    async def take(self, client: str, count: int, wait: bool = True) -> None:
        """Acquire `count` permits, or none. Raises ModelOverloaded."""
        if not self._waiters and self.taken + count <= self._limit:
            self._grant(client, count)
        elif not wait or self._refused(client, count):
            raise self._overloaded()
        else:
            await self._wait(client, count)

    def give_back(self, client: str, count: int) -> None:
        """Release permits."""
        if not count:
            return
        self._forget(client, count)
        self._note_freed(count)
        self._let_in()

    def suspend(self, client: str, request: Hashable, end: Callable[[], None]) -> None:
        """Free the permit of a request that is paused. If too many are suspended, end one of the client with the most."""
        if len(self._suspended) >= self._limit:
            counts = Counter(owner for owner, _ in self._suspended.values())
            most = max(counts, key=counts.__getitem__)
            next(end for owner, end in self._suspended.values() if owner == most)()
        self._suspended[request] = client, end
        self._forget(client, 1)
        self._let_in()

    def resume(self, request: Hashable) -> bool:
        """Give a suspended request that continues or ends its permit back, even beyond the limit. Return whether it was
        suspended."""
        client, _ = self._suspended.pop(request, (None, None))
        if client is not None:
            self._grant(client, 1)
        return client is not None

    def _refused(self, client: str, count: int) -> bool:
        """Return whether a client that gets no permit at once may not wait for one either."""
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
        """Create the error with a random retry time, by which between half and all of the current requests should be done: clients
        should not retry together."""
        return ModelOverloaded(spread(min(max(self._gap_s * self.taken, 1.0), _LONGEST_S)))


def spread(seconds: float) -> float:
    """Return a random time between half of `seconds` and all of it, so that clients rejected together do not retry together."""
    return uniform(0.5, 1.0) * seconds
