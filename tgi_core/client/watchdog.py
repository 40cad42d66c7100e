"""Detection of a hung shard by the age of its current step, even if it still responds to other calls.

Time is counted in ticks, and a tick never counts for more than its nominal length: while this process was stopped or its machine
slept, the shard may have been as well.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable

from tgi_core.wire.types import Prefill, StepVerb, Turn

_TIMES_MEDIAN = 20
_REMEMBERED = 65
"""Number of latest steps per class over which the median is taken."""
_MOST_LAUNCHED = 64
_TICK_S = 0.25
_TICKS_IN_FLOOR = 8


class StepSizes:
    """Tracks the number of tokens for which each turn waits: those of the step that it reads, as far as its launch specifies
    them."""

    def __init__(self) -> None:
        self._launched: dict[int, int] = {}

    def of(self, turn: Turn) -> int:
        """Return the tokens of a turn; rows that decode one token without a grant are not counted."""
        if turn.launch is not None:
            self._launched[turn.launch.step] = _tokens(turn.launch)
            if len(self._launched) > _MOST_LAUNCHED:  # a refused step is never read
                del self._launched[next(iter(self._launched))]
        if turn.read is not None:
            return self._launched.pop(turn.read, 0)
        return 0

    def forget(self) -> None:
        """Forget the steps of a lost shard, which are never read."""
        self._launched.clear()


def _tokens(launch: StepVerb) -> int:
    granted = sum(grant.take for grant in launch.grants)
    return granted + (sum(item.request.take for item in launch.requests) if isinstance(launch, Prefill) else 0)


class AdaptiveTimeout:
    """Time limits of turns: the floor, or a multiple of the median of turns in the same size class. Class sizes double."""

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self._seconds: dict[int, deque[float]] = {}

    def observe(self, size: int, seconds: float) -> None:
        """Record a completed turn."""
        self._seconds.setdefault(size.bit_length(), deque(maxlen=_REMEMBERED)).append(seconds)

    def seconds(self, size: int) -> float:
        """Return the time limit for a turn of that size, in seconds. A class without measurements uses the next smaller one."""
        wanted = size.bit_length()
        known = max((each for each in self._seconds if each <= wanted), default=None)
        if known is None:
            known = min(self._seconds, default=None)
        if known is None:
            return self.floor
        usual: float = statistics.median(self._seconds[known])
        return max(self.floor, _TIMES_MEDIAN * usual * 2.0 ** max(0, wanted - known))


class Watchdog:
    """Calls `hangs`, with a message, once for each turn that takes too long. Bound to one event loop."""

    def __init__(
        self, timeout: AdaptiveTimeout, hangs: Callable[[str], Awaitable[None]], clock: Callable[[], float] = time.monotonic
    ):
        self.factor = 1
        """Multiplier of the time limit; grows with alarms that recur after a restart."""
        self._timeout, self._hangs, self._clock = timeout, hangs, clock
        self._sizes = StepSizes()
        self._began: float | None = None
        self._size = 0
        self._age = 0.0
        self._last_tick = clock()
        self.period = min(_TICK_S, timeout.floor / _TICKS_IN_FLOOR)

    def begin(self, turn: Turn) -> None:
        """Record the start of a turn."""
        self._size, self._age, self._began = self._sizes.of(turn), 0.0, self._clock()

    def end(self) -> None:
        """Record the end of a turn."""
        if self._began is not None:
            self._timeout.observe(self._size, self._clock() - self._began)
            self._began = None

    def forget(self) -> None:
        """Forget the shard and its turn."""
        self._began = None
        self._sizes.forget()

    async def run(self) -> None:
        """Watch until cancelled."""
        self._last_tick = self._clock()
        while True:
            await asyncio.sleep(self.period)
            await self.tick()

    async def tick(self) -> None:
        """Count one tick and check the current turn."""
        now = self._clock()
        passed, self._last_tick = min(now - self._last_tick, 2 * self.period), now
        if self._began is None:
            return
        self._age = min(self._age + passed, now - self._began)
        if self._age > self.factor * self._timeout.seconds(self._size):
            self._began = None
            await self._hangs(f"the shard hangs: its step has not ended for {self._age:.1f} s")
