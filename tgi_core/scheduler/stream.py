"""The way of a request's results from the scheduler's loop to the handler that waits for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tgi_core.scheduler.types import NotRead, SchedulerError
from tgi_core.wire.types import Generation

Take = Callable[[Generation], bool]
"""Takes what a step made; says whether it can take more at once."""

BUFFER_BYTES = 1 << 20
"""What may wait for a reader, in about the bytes that it takes up. Of one step everything fits, however much it is."""
_HELD = 16
"""With one part in so many of it waiting, nothing more should be made until the reader has taken all."""

_TOKEN_BYTES, _GENERATION_BYTES = 320, 160
"""What a token, a candidate or a prompt token and what a step take up besides their texts."""
_BURST = 64
"""So much of what has waited is handed over at once; then others get their turn."""


class GenerationStream:
    """The `Generation`s of one request, as an async iterator or poured into a function; both raise `SchedulerError` if it fails.

    Belongs to one event loop. Times are seconds of the loop's clock. `when_held` tells of a reader that leaves a part of `buffer`
    waiting. One that leaves more than `buffer` bytes, since all the same more is made, gets those, and then `NotRead`; the request has
    ended by then.
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
        self._held = False
        self.when_held: list[Callable[[bool], None]] = []
        """Called with true when so much waits that nothing more should be made for now, and with false once the reader has taken it."""
        self._error: SchedulerError | None = None
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._take: Take | None = None
        self._flowing = False
        """Whether `_take` can take more, and nothing waits that comes before."""
        self._failure: Exception | None = None
        """What `_take` raised."""

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
        if self._held and not self._pending:
            self._hold(False)
        return generation

    async def pour(self, take: Take) -> None:
        """Hand everything to `take`, at once and in the turn of whoever brings it, until the end: no task wakes up for a token. After a
        no of `take`, `go_on` is to be called once it can take more. What it raises ends the request, and is raised here."""
        self._take, self._flowing = take, not self._pending
        self.go_on()
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

    def go_on(self) -> None:
        """Whoever the stream is poured into can take more. Harmless at any time."""
        for _ in range(_BURST):
            if self._take is None or not self._pending:
                break
            generation, size = self._pending.popleft()
            self._waiting_bytes -= size
            if not self._hand_over(self._take, generation):
                return
        if self._pending:
            asyncio.get_running_loop().call_soon(self.go_on)
            return
        self._flowing = self._take is not None
        if self._held and self._flowing:
            self._hold(False)
        if self._ended or self._error is not None:
            self._wake()

    def _hand_over(self, take: Take, generation: Generation) -> bool:
        try:
            return take(generation)
        except Exception as error:  # noqa: BLE001  it is raised where the stream is poured
            self._failure = error
            self.cancel()
            self._wake()
            return False

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
        elif self._waiting_bytes > self._buffer // _HELD and not (self._held or self._ended):
            self._hold(True)
        self._wake()

    def _hold(self, held: bool) -> None:
        self._held = held
        for listener in self.when_held:
            listener(held)

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
