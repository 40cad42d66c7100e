"""Steps and a vision tower that runs beside them take turns on the device's cores."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

SHARE = 0.5
"""How long the tower may run between two steps, in usual steps."""
_MORE = 0.4
"""How much longer a step waits for an operation of the tower that has begun, in usual steps."""
_USUAL = 7
"""The usual step is the median of so many."""


class Turns:
    """Between two steps, a tower that runs beside them has the cores for a share of the usual step, for which the next step waits. It stops
    before an operation that would take longer, but does one per turn; what has begun goes on beside the step, at the priority of its
    thread. Steps come from one thread, towers from any."""

    def __init__(self, share: float = SHARE) -> None:
        self._share, self._changed = share, threading.Condition()
        self._tower = threading.Lock()
        self._beside = self._parked = self._waiting = self._stepping = False
        """Whether a tower runs beside steps, and has stopped for one; whether a step waits, and runs."""
        self._ends = self._latest = 0.0
        """When the tower's turn ends, and when the next step no longer waits for it."""
        self._took: deque[float] = deque(maxlen=_USUAL)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step inside, after the tower's turn."""
        with self._changed:
            self._waiting = True
            while self._beside and not self._parked and (left := self._latest - time.monotonic()) > 0:
                self._changed.wait(left)
            self._waiting, self._stepping = False, True
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self._took.append(ended - began)
            usual = median(self._took)
            self._ends = ended + self._share * usual
            self._latest = self._ends + _MORE * usual
            self._let_go_on()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run the tower in a step, or where there are none. One that runs beside steps first ends its image."""
        stepping = self._stepping
        self._let_go_on()
        with self._tower:
            self._stepping = stepping
            yield

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run the tower beside steps, in a thread of its own."""
        with self._tower:
            self._beside = True
            try:
                with _BeforeEach(self._take_turn):
                    yield
            finally:
                with self._changed:
                    self._beside = False
                    self._changed.notify_all()

    def _take_turn(self, expected: float) -> None:
        """Before an operation that is expected to take so many seconds: stop if a step runs, or waits and would wait too long."""
        if not (self._stepping or self._waiting):
            return
        with self._changed:
            if self._stepping or (self._waiting and time.monotonic() + expected > self._ends):
                self._parked = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._parked)

    def _let_go_on(self) -> None:
        """Let a tower that has stopped go on."""
        with self._changed:
            self._stepping = self._parked = False
            self._changed.notify_all()


class _BeforeEach(TorchFunctionMode):
    """Calls a function before each of torch's operations in this thread, with the seconds that it took last time."""

    def __init__(self, call: Callable[[float], None]) -> None:
        super().__init__()
        self._call = call
        self._took: dict[tuple[Any, ...], float] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = func, *(each.shape for each in args if isinstance(each, Tensor))
        self._call(self._took.get(operation, 0.0))
        began = time.monotonic()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._took[operation] = time.monotonic() - began
