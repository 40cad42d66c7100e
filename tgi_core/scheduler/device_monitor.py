"""Monitoring of whether the device's results can be trusted.

One row of NaN is the fault of its request; several in a short time are the device's. A failed step may be the fault of a request;
if several requests in a row fail with their steps, and no step succeeds in between, it is the device's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tgi_core.backend import RowFaultKind

NAN_ROWS = 3
NAN_WINDOW_S = 60.0
"""After `NAN_ROWS` rows of NaN within `NAN_WINDOW_S` seconds the device is not trusted until that many seconds have passed."""
LOST_REQUESTS = 3
LOST_WINDOW_S = 60.0
"""After `LOST_REQUESTS` requests failed with their steps, and no step succeeded, the device is not trusted until a step succeeds or
`LOST_WINDOW_S` seconds have passed: another request must be let in to find out."""


class DeviceMonitor:
    """Counts rows of NaN and failed steps. `clock` returns seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=NAN_ROWS)
        self.nan_rows = 0
        """Number of NaN rows since the start."""
        self._lost_requests, self._lost_at = 0, 0.0
        """Number of requests that failed with their steps since the last successful step."""

    def note_failed(self, kind: RowFaultKind | None) -> None:
        """Record a failed request: a row failure of that kind, or, without a kind, one that failed with its steps."""
        if kind is RowFaultKind.NAN:
            self.nan_rows += 1
            self._times.append(self._clock())
        elif kind is None:
            self._lost_requests += 1
            self._lost_at = self._clock()

    def note_step(self) -> None:
        """Record a successful step."""
        self._lost_requests = 0

    @property
    def sound(self) -> bool:
        """Whether the device's results can be trusted."""
        now = self._clock()
        numbers = len(self._times) < NAN_ROWS or now - self._times[0] > NAN_WINDOW_S
        return numbers and (self._lost_requests < LOST_REQUESTS or now - self._lost_at > LOST_WINDOW_S)
