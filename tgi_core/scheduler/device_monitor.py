"""Whether the device computes anything of use.

One row of NaN is its request's, several in a short time are the device's. A step that fails may be a request's; where one request after
another fails for its steps, and no step succeeds in between, it is the device again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tgi_core.backend import RowFaultKind

NAN_ROWS = 3
NAN_WINDOW_S = 60.0
"""So many rows of NaN in so many seconds, and the device is not to be trusted until they are that long ago."""
LOST_REQUESTS = 3
LOST_WINDOW_S = 60.0
"""So many requests that failed for their steps without one that succeeded, and the device is not to be trusted until one does, or until
the last of them is so many seconds ago: somebody must ask again to find out."""


class DeviceMonitor:
    """Remembers when the last rows of NaN came. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=NAN_ROWS)
        self.nan_rows = 0
        """Rows of NaN since the start."""
        self._lost_requests, self._lost_at = 0, 0.0
        """Requests that failed for their steps since a step succeeded."""

    def note_failed(self, kind: RowFaultKind | None) -> None:
        """A request failed: for its row, or for its steps where there is no kind."""
        if kind is RowFaultKind.NAN:
            self.nan_rows += 1
            self._times.append(self._clock())
        elif kind is None:
            self._lost_requests += 1
            self._lost_at = self._clock()

    def note_step(self) -> None:
        """A step brought rows."""
        self._lost_requests = 0

    @property
    def sound(self) -> bool:
        """Whether there were fewer of both than too many."""
        now = self._clock()
        numbers = len(self._times) < NAN_ROWS or now - self._times[0] > NAN_WINDOW_S
        return numbers and (self._lost_requests < LOST_REQUESTS or now - self._lost_at > LOST_WINDOW_S)
