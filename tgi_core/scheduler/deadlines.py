"""Deadlines of requests (`--request-timeout`, `x-request-timeout`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort


class Deadlines:
    """Keys of live requests, ordered by deadline."""

    def __init__(self) -> None:
        self._order: list[tuple[float, int]] = []
        self._times: dict[int, float] = {}

    def add(self, key: int, when: float | None) -> None:
        """Set a deadline, if there is one; `when` is a time on the scheduler's clock."""
        if when is not None:
            insort(self._order, (when, key))
            self._times[key] = when

    def forget(self, key: int) -> None:
        """Remove the deadline of a request that has ended. No effect if it has none."""
        when = self._times.pop(key, None)
        if when is not None:
            del self._order[bisect_left(self._order, (when, key))]

    def due(self, now: float) -> list[int]:
        """Return keys whose deadline has passed, earliest first; they remain until `forget`."""
        if not self._order or self._order[0][0] > now:
            return []
        return [key for _, key in self._order[: bisect_right(self._order, now, key=lambda item: item[0])]]
