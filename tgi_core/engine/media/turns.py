"""Steps and a vision tower that runs beside them take turns on the device's cores."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from torch.overrides import TorchFunctionMode

SHARE = 0.5
"""How long the tower may run between two steps, in usual steps."""
_USUAL = 7
"""The usual step is the median of so many."""


class Turns:
    """Between two steps, a tower that runs beside them has the cores for a share of the usual step, for which the next step waits. While
    a step runs, the tower stops before its next operation, and one that has begun goes on at the priority of its thread. Thread-safe."""

    def __init__(self, share: float = SHARE) -> None:
        self._share, self._changed = share, threading.Condition()
        self._tower = threading.Lock()
        self._stepping = self._beside = False
        self._ends = 0.0
        """When the tower's turn ends."""
        self._took: deque[float] = deque(maxlen=_USUAL)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step inside, after the tower's turn."""
        with self._changed:
            while self._beside and (left := self._ends - time.monotonic()) > 0:
                self._changed.wait(left)
            self._stepping = True
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self._took.append(ended - began)
            self._ends = ended + self._share * median(self._took)
            self._set_stepping(False)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run the tower inside a step, or where there are none. If it runs beside steps now, it first ends that."""
        stepping = self._stepping
        self._set_stepping(False)
        with self._tower:
            self._set_stepping(stepping)
            yield

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run the tower beside steps, in a thread of its own."""
        with self._tower:
            self._set_beside(True)
            try:
                with _BeforeEach(self._pause):
                    yield
            finally:
                self._set_beside(False)

    def _pause(self) -> None:
        """Wait until no step runs."""
        if self._stepping:
            with self._changed:
                self._changed.wait_for(lambda: not self._stepping)

    def _set_stepping(self, stepping: bool) -> None:
        with self._changed:
            self._stepping = stepping
            self._changed.notify_all()

    def _set_beside(self, beside: bool) -> None:
        with self._changed:
            self._beside = beside
            self._changed.notify_all()


class _BeforeEach(TorchFunctionMode):
    """Calls a function before each of torch's operations in this thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._call()
        return func(*args, **(kwargs or {}))
