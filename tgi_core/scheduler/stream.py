"""The way of a request's results from the scheduler's loop to the handler that waits for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tgi_core.client.types import Generation
from tgi_core.scheduler.types import SchedulerError


class GenerationStream:
    """An async iterator over the `Generation`s of one request; raises `SchedulerError` if it fails.

    Belongs to one event loop. Times are seconds of the loop's clock.
    """

    def __init__(self, queued_at: float, cancel: Callable[[], None]) -> None:
        self.queued_at = queued_at
        self.started_at: float | None = None
        """When the request first was part of a step."""
        self.cached = 0
        """Tokens of the prompt that were found in the cache then."""
        self._cancel = cancel
        self._pending: deque[Generation] = deque()
        self._error: SchedulerError | None = None
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

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
        return self._pending.popleft()

    def cancel(self) -> None:
        """Leave: the request is in no step launched after this, and its blocks are free. Harmless once ended."""
        if not self._ended:
            self._ended = True
            self._cancel()
            self._wake()

    def push(self, generation: Generation) -> None:
        """Deliver what a step made; called by the loop."""
        self._pending.append(generation)
        self._ended = self._ended or generation.finished is not None
        self._wake()

    def fail(self, error: SchedulerError) -> None:
        """End with an error, after what was already delivered; called by the loop."""
        self._error, self._ended = error, True
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
