"""Whether the device computes numbers at all: one row of NaN is its request's, several in a short time are the device's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

NAN_ROWS = 3
NAN_WINDOW_S = 60.0
"""So many rows of NaN in so many seconds, and the device is not to be trusted until they are that long ago."""


class Soundness:
    """Remembers when the last rows of NaN came. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=NAN_ROWS)
        self.nan_rows = 0
        """Rows of NaN since the start."""

    def note_nan(self) -> None:
        """A row was not finite."""
        self.nan_rows += 1
        self._times.append(self._clock())

    @property
    def sound(self) -> bool:
        """Whether there were fewer of them than too many."""
        return len(self._times) < NAN_ROWS or self._clock() - self._times[0] > NAN_WINDOW_S
