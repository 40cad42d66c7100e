"""When requests must be done."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort


class Deadlines:
    """Keys by the time at which they are due, for as long as their requests last."""

    def __init__(self) -> None:
        self._order: list[tuple[float, int]] = []
        self._times: dict[int, float] = {}

    def add(self, key: int, when: float) -> None:
        """`when` is a time of the scheduler's clock."""
        insort(self._order, (when, key))
        self._times[key] = when

    def forget(self, key: int) -> None:
        """A request has ended. Harmless for one without a deadline."""
        when = self._times.pop(key, None)
        if when is not None:
            del self._order[bisect_left(self._order, (when, key))]

    def due(self, now: float) -> list[int]:
        """All whose time is up, the first due first; they stay until they are forgotten."""
        if not self._order or self._order[0][0] > now:
            return []
        return [key for _, key in self._order[: bisect_right(self._order, now, key=lambda item: item[0])]]
