"""The stream of a request's results, from the scheduler's loop to the waiting handler."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tgi_core.scheduler.prediction import Prediction
from tgi_core.scheduler.types import NotRead, SchedulerError
from tgi_core.wire.types import Generation

Take = Callable[[Generation], bool]
"""Takes the result of a step; returns whether it can take more immediately."""

BUFFER_BYTES = 1 << 20
"""Buffer limit, in approximate bytes of memory. The result of one step always fits, however large it is."""
_STALLED = 16
"""Backpressure: once 1/16 of the buffer is in use, generation should pause until the reader has taken everything."""

_TOKEN_BYTES, _GENERATION_BYTES = 320, 160
"""Bytes of a token, candidate or prompt token, and of a step's result, without their texts."""
_BURST = 64
"""Number of waiting results that are handed over per event loop iteration."""


class GenerationStream:
    """The `Generation`s of one request, as an async iterator or poured into a function; both raise `SchedulerError` if it fails.

    Belongs to one event loop. Times are seconds on the loop's clock. `on_backpressure` is called when the reader falls behind. If
    more than `buffer` bytes wait all the same, the request ends, and the reader gets those bytes and then `NotRead`.
    """

    def __init__(self, queued_at: float, cancel: Callable[[], None], buffer: int = BUFFER_BYTES) -> None:
        self.queued_at = queued_at
        self.started_at: float | None = None
        """Time at which the request's first step was sent."""
        self.cached = 0
        """Number of prompt tokens that were found in the cache at that time."""
        self.prediction: Prediction | None = None
        """What the client expects the answer to contain, and how much of it was used."""
        self._cancel = cancel
        self._pause: Callable[[bool], None] = lambda stalled: None
        self._pending: deque[tuple[Generation, int]] = deque()
        """Results with their sizes; size 0 if the queue was empty, so that a reader that keeps up costs nothing."""
        self._buffer = buffer
        self._waiting_bytes = 0
        self._stalled = False
        self.on_backpressure: list[Callable[[bool], None]] = []
        """Called with True when generation should pause, and with False once the reader has caught up."""
        self._error: SchedulerError | None = None
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._take: Take | None = None
        self._flowing = False
        """Whether `_take` can take more and nothing is pending."""
        self._failure: Exception | None = None
        """Exception raised by `_take`."""

    def serve_by(self, cancel: Callable[[], None], pause: Callable[[bool], None]) -> None:
        """Change who serves the request: `cancel` ends it there; `pause` is called with True when generation should pause and with False
        when it should continue."""
        self._cancel, self._pause = cancel, pause

    def __aiter__(self) -> GenerationStream:
        return self

    async def __anext__(self) -> Generation:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        generation, size = self._pending.popleft()
        self._waiting_bytes -= size
        if self._stalled and not self._pending:
            self._set_stalled(False)
        return generation

    async def pour(self, take: Take) -> None:
        """Pass all results to `take`, in the callback that delivers them, until the end: no task wakes up per token. After `take`
        has returned False, call `resume` once it can take more. An exception of `take` ends the request and is raised here."""
        self._take, self._flowing = take, not self._pending
        self.resume()
        try:
            while self._failure is None:
                if not self._pending and self._error is not None:
                    raise self._error
                if not self._pending and self._ended:
                    return
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            raise self._failure
        finally:
            self._take, self._flowing = None, False

    def resume(self) -> None:
        """Signal that `take` can take more. Safe to call at any time."""
        for _ in range(_BURST):
            if self._take is None or not self._pending:
                break
            generation, size = self._pending.popleft()
            self._waiting_bytes -= size
            if not self._hand_over(self._take, generation):
                return
        if self._pending:
            asyncio.get_running_loop().call_soon(self.resume)
            return
        self._flowing = self._take is not None
        if self._stalled and self._flowing:
            self._set_stalled(False)
        if self._ended or self._error is not None:
            self._wake()

    def _hand_over(self, take: Take, generation: Generation) -> bool:
        try:
            return take(generation)
        except Exception as error:  # noqa: BLE001  `pour` raises it
            self._failure = error
            self.cancel()
            self._wake()
            return False

    def cancel(self) -> None:
        """End the request: no step launched after this includes it, and its blocks are freed. No effect once ended."""
        if not self._ended:
            self._ended = True
            self._cancel()
            self._wake()

    def abort(self, error: SchedulerError) -> None:
        """End the request with an error. No effect once ended."""
        if not self._ended:
            self._error = error
            self.cancel()

    def push(self, generation: Generation) -> None:
        """Deliver the result of a step; called by the loop."""
        if self._flowing and self._take is not None:
            self._ended = self._ended or generation.finished is not None
            self._flowing = self._hand_over(self._take, generation)
            if self._ended:
                self._wake()
            return
        size = _size(generation) if self._pending else 0
        self._pending.append((generation, size))
        self._waiting_bytes += size
        self._ended = self._ended or generation.finished is not None
        if self._waiting_bytes > self._buffer:
            self.abort(NotRead("the client read too slowly"))
        elif self._waiting_bytes > self._buffer // _STALLED and not (self._stalled or self._ended):
            self._set_stalled(True)
        self._wake()

    def _set_stalled(self, stalled: bool) -> None:
        self._stalled = stalled
        self._pause(stalled)
        for listener in self.on_backpressure:
            listener(stalled)

    def fail(self, error: SchedulerError) -> None:
        """End with an error, after the results already delivered; called by the loop."""
        self._error, self._ended = error, True
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _size(generation: Generation) -> int:
    """Return the approximate size in memory, in bytes."""
    size = _GENERATION_BYTES + sum(_TOKEN_BYTES + 2 * len(token.text) for token in generation.prompt)
    for token in generation.tokens:
        size += _TOKEN_BYTES * (1 + len(token.top)) + 2 * len(token.text)
    return size
