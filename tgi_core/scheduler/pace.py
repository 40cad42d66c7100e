"""How fast the shard computes, and so how long what waits will take."""

from __future__ import annotations

_WEIGHT = 0.05
"""Of the latest step in the average."""
_SHORTEST_S, _LONGEST_S = 1.0, 60.0


class Pace:
    """A moving average of tokens per second over steps that follow each other."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._last: float | None = None

    def step(self, tokens: int, now: float) -> None:
        """A step of so many tokens was launched."""
        if self._last is not None and now > self._last:
            rate = tokens / (now - self._last)
            self._rate = rate if not self._rate else self._rate + _WEIGHT * (rate - self._rate)
        self._last = now

    def pause(self) -> None:
        """Nothing runs; the time until the next step is not the shard's."""
        self._last = None

    def seconds_for(self, tokens: int) -> float:
        """How long so many tokens take, from 1 to 60; 1 while nothing is known."""
        return min(_LONGEST_S, max(_SHORTEST_S, tokens / self._rate if self._rate else 0.0))
