"""Finding out that a shard hangs: by the age of the step that it is at, whatever else it answers.

Time is counted in ticks, and a tick counts for no more than it should have taken: while this process was stopped or its machine slept,
the shard may have been too.
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
"""Steps of one class whose median counts."""
_MOST_LAUNCHED = 64
_TICK_S = 0.25
_TICKS_IN_FLOOR = 8


class StepSizes:
    """How many tokens each turn waits for: those of the step that it reads, as far as its launch told."""

    def __init__(self) -> None:
        self._launched: dict[int, int] = {}

    def of(self, turn: Turn) -> int:
        """Tokens; rows that run one token without being told count for nothing."""
        if turn.launch is not None:
            self._launched[turn.launch.step] = _tokens(turn.launch)
            if len(self._launched) > _MOST_LAUNCHED:  # one that was refused is never read
                del self._launched[next(iter(self._launched))]
        if turn.read is not None:
            return self._launched.pop(turn.read, 0)
        return 0

    def forget(self) -> None:
        """Steps of a shard that is gone are never read."""
        self._launched.clear()


def _tokens(launch: StepVerb) -> int:
    granted = sum(grant.take for grant in launch.grants)
    return granted + (sum(item.request.take for item in launch.requests) if isinstance(launch, Prefill) else 0)


class Patience:
    """How long a turn may take: the floor, or so many times the median of turns of its class. A class doubles in tokens."""

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self._seconds: dict[int, deque[float]] = {}

    def note(self, size: int, seconds: float) -> None:
        """A turn that came back."""
        self._seconds.setdefault(size.bit_length(), deque(maxlen=_REMEMBERED)).append(seconds)

    def seconds(self, size: int) -> float:
        """What a turn of that size may take; one of a class that was never seen is judged by the next smaller one."""
        wanted = size.bit_length()
        known = max((each for each in self._seconds if each <= wanted), default=None)
        if known is None:
            known = min(self._seconds, default=None)
        if known is None:
            return self.floor
        usual: float = statistics.median(self._seconds[known])
        return max(self.floor, _TIMES_MEDIAN * usual * 2.0 ** max(0, wanted - known))


class Watchdog:
    """Calls `hangs` once for each turn that takes too long, with a text that says so. Belongs to one event loop."""

    def __init__(self, patience: Patience, hangs: Callable[[str], Awaitable[None]], clock: Callable[[], float] = time.monotonic):
        self.factor = 1
        """Of what is allowed: it grows with alarms that a restart did not cure."""
        self._patience, self._hangs, self._clock = patience, hangs, clock
        self._sizes = StepSizes()
        self._began: float | None = None
        self._size = 0
        self._age = 0.0
        self._last_tick = clock()
        self.period = min(_TICK_S, patience.floor / _TICKS_IN_FLOOR)

    def begin(self, turn: Turn) -> None:
        """A turn is sent."""
        self._size, self._age, self._began = self._sizes.of(turn), 0.0, self._clock()

    def end(self) -> None:
        """Its answer came."""
        if self._began is not None:
            self._patience.note(self._size, self._clock() - self._began)
            self._began = None

    def forget(self) -> None:
        """The shard is gone, and with it the turn."""
        self._began = None
        self._sizes.forget()

    async def run(self) -> None:
        """Watch until cancelled."""
        self._last_tick = self._clock()
        while True:
            await asyncio.sleep(self.period)
            await self.tick()

    async def tick(self) -> None:
        """Look once."""
        now = self._clock()
        passed, self._last_tick = min(now - self._last_tick, 2 * self.period), now
        if self._began is None:
            return
        self._age = min(self._age + passed, now - self._began)
        if self._age > self.factor * self._patience.seconds(self._size):
            self._began = None
            await self._hangs(f"the shard hangs: its step has not ended for {self._age:.1f} s")
