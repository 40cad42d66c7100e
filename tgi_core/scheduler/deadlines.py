"""When requests must be done."""

from __future__ import annotations

from heapq import heappop, heappush


class Deadlines:
    """Keys by the time at which they are due. A key that has ended meanwhile still comes due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def add(self, key: int, when: float) -> None:
        """`when` is a time of the scheduler's clock."""
        heappush(self._heap, (when, key))

    def due(self, now: float) -> list[int]:
        """Take out all that are due."""
        keys: list[int] = []
        while self._heap and self._heap[0][0] <= now:
            keys.append(heappop(self._heap)[1])
        return keys
