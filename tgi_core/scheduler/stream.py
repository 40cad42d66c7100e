"""The way of a request's results from the scheduler's loop to the handler that waits for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tgi_core.client.types import Generation
from tgi_core.scheduler.types import NotRead, SchedulerError

BUFFER_BYTES = 1 << 20
"""What may wait for a reader, in about the bytes that it takes up. Of one step everything fits, however much it is."""

_TOKEN_BYTES, _GENERATION_BYTES = 320, 160
"""What a token, a candidate or a prompt token and what a step take up besides their texts."""


class GenerationStream:
    """An async iterator over the `Generation`s of one request; raises `SchedulerError` if it fails.

    Belongs to one event loop. Times are seconds of the loop's clock. A reader that leaves more than `buffer` bytes waiting gets
    those, and then `NotRead`; the request has ended by then.
    """

    def __init__(self, queued_at: float, cancel: Callable[[], None], buffer: int = BUFFER_BYTES) -> None:
        self.queued_at = queued_at
        self.started_at: float | None = None
        """When the request first was part of a step."""
        self.cached = 0
        """Tokens of the prompt that were found in the cache then."""
        self._cancel = cancel
        self._pending: deque[tuple[Generation, int]] = deque()
        """With its size, unless nothing waited before it: a reader that keeps up costs nothing."""
        self._buffer = buffer
        self._waiting_bytes = 0
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
        generation, size = self._pending.popleft()
        self._waiting_bytes -= size
        return generation

    def cancel(self) -> None:
        """Leave: the request is in no step launched after this, and its blocks are free. Harmless once ended."""
        if not self._ended:
            self._ended = True
            self._cancel()
            self._wake()

    def abort(self, error: SchedulerError) -> None:
        """Leave, and end with an error. Harmless once ended."""
        if not self._ended:
            self._error = error
            self.cancel()

    def push(self, generation: Generation) -> None:
        """Deliver what a step made; called by the loop."""
        size = _size(generation) if self._pending else 0
        self._pending.append((generation, size))
        self._waiting_bytes += size
        self._ended = self._ended or generation.finished is not None
        if self._waiting_bytes > self._buffer:
            self.abort(NotRead("the client read too slowly"))
        self._wake()

    def fail(self, error: SchedulerError) -> None:
        """End with an error, after what was already delivered; called by the loop."""
        self._error, self._ended = error, True
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _size(generation: Generation) -> int:
    """About the bytes that it takes up."""
    size = _GENERATION_BYTES + sum(_TOKEN_BYTES + 2 * len(token.text) for token in generation.prompt)
    for token in generation.tokens:
        size += _TOKEN_BYTES * (1 + len(token.top)) + 2 * len(token.text)
    return size
