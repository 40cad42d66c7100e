"""One model server and its thread.

Everything that touches the backend runs in that thread, in the order of the calls; health is read from any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tgi_core.backend import Capacity, DeviceLost, Progress, Scope, WarmupPlan
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.health import ShardHealth, ShardState, TaskProgress
from tgi_core.wire.types import Turn, TurnResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Model:
    """An open model: its server, its tokenizer, and the tokenizer's hash, which routers compare with theirs."""

    server: ModelServer
    tokenizer: Tokenizer
    tokenizer_hash: str = ""


class ShardHost:
    """Opens a model, warms it up once and executes turns. Thread-safe. `lost` is called when the backend becomes unusable."""

    def __init__(self, lost: Callable[[], None] = lambda: None) -> None:
        self._lost = lost
        self._progress: Progress | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shard", initializer=self._note_thread)
        self._ident = 0
        self._opened: Future[Model] = Future()
        self._state = ShardState.OPENING
        self._task: TaskProgress | None = None
        self.capacity: Capacity | None = None
        """The capacity, once the shard is warm."""
        self._turn_began_ns: int | None = None
        self._turn_ended_ns: int | None = None
        self._turns = 0

    def show(self, what: str, done: int, total: int, unit: str) -> None:
        """Report the progress of slow work in the shard's health; a `tgi_core.backend.Progress`."""
        self._task = TaskProgress(what, done, total, unit)
        if self._progress is not None:
            self._progress(what, done, total, unit)

    def report_to(self, progress: Progress) -> None:
        """Report progress to `progress`, too."""
        self._progress = progress

    @contextmanager
    def finding(self) -> Generator[None, None, None]:
        """Look for the model's files in the block. Its error becomes that of routers that wait for the model."""
        try:
            yield
        except BaseException as error:
            self._opened.set_exception(error)
            raise

    @property
    def failed(self) -> bool:
        """Whether the model could not be opened."""
        return self._opened.done() and self._opened.exception() is not None

    def open(self, opener: Callable[[], Model]) -> Future[Model]:
        """Start opening the model; the future yields the model or the error."""
        opening = self._thread.submit(self._open, opener)
        opening.add_done_callback(self._settle)
        return opening

    def model(self) -> Model:
        """Wait until the model is open and return it; raises the error that prevented it."""
        return self._opened.result()

    def warmup(self, plan: WarmupPlan) -> Capacity:
        """Warm up. A shard that is warm already returns the same capacity again. Raises BackendError."""
        return self.run(lambda: self._warmup(plan))

    def run(self, work: Callable[[], T]) -> T:
        """Run a call in the shard's thread, which may be the caller's, and return its result. Raises DeviceLost once the shard is
        closed."""
        if threading.get_ident() == self._ident:
            return work()
        try:
            future = self._thread.submit(work)
        except RuntimeError as error:
            raise DeviceLost("the shard is closed") from error
        return future.result()

    def exchange(self, turn: Turn) -> TurnResult:
        """Execute a turn; call from the shard's thread."""
        self._turn_began_ns = time.monotonic_ns()
        try:
            result = self.model().server.exchange(turn)
        finally:
            self._turn_began_ns, self._turn_ended_ns = None, time.monotonic_ns()
            self._turns += 1
        faults = (result.refused, result.result.fault if result.result is not None else None)
        if any(fault is not None and fault.scope is Scope.SESSION for fault in faults):
            self._state = ShardState.LOST
            self._lost()
        return result

    def health(self) -> ShardHealth:
        """Return the shard's health, without waiting for its thread."""
        now, began, ended = time.monotonic_ns(), self._turn_began_ns, self._turn_ended_ns
        return ShardHealth(
            state=self._state,
            task=self._task,
            turns=self._turns,
            last_step_age_ns=None if ended is None else now - ended,
            turn_age_ns=None if began is None else now - began,
        )

    def close(self, seconds: float) -> bool:
        """Close the model. Return False if the shard's thread does not finish within `seconds`."""
        closing = self._thread.submit(self._close)
        self._thread.shutdown(wait=False)
        try:
            closing.result(seconds)
        except TimeoutError:
            return False
        return True

    def _note_thread(self) -> None:
        self._ident = threading.get_ident()

    def _open(self, opener: Callable[[], Model]) -> Model:
        model = opener()
        self._state, self._task = ShardState.OPEN, None
        return model

    def _settle(self, opening: Future[Model]) -> None:
        """Pass the outcome of the opening to routers, which may have been waiting since before it began."""
        error = opening.exception()
        if error is None:
            self._opened.set_result(opening.result())
        else:
            self._opened.set_exception(error)

    def _warmup(self, plan: WarmupPlan) -> Capacity:
        if self.capacity is None:
            self._state = ShardState.WARMING
            try:
                self.capacity = self.model().server.warmup(plan, self.show)
                self._state = ShardState.READY
            finally:
                self._task = None
        return self.capacity

    def _close(self) -> None:
        if self._opened.done() and not self.failed:
            self._opened.result().server.close()
