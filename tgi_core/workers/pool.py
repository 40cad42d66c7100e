"""Pool of worker processes, started when the others stay busy, killed when a request exceeds its limits, and restarted.

Measured on two busy cores: starting a worker takes 0.2 s; a request takes 0.2 ms longer than in this process.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from tgi_core.workers.semaphore import LimitedSemaphore
from tgi_core.workers.worker import Worker

STUCK_S = 10.0
"""Seconds without CPU time after which a worker counts as stopped or hung."""
PATIENCE_S = 0.3
"""Seconds for which a request waits for a busy worker before another is started: about as long as a start takes. A worker takes memory, and
a burst of requests is over before a second one could help."""
_TRIES = 2
"""Attempts per request: the first worker may have died for an unrelated reason."""
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class WorkerError(Exception):
    """A request received no answer."""


class TooCostly(WorkerError):
    """The request exceeded its CPU time limit."""


class WorkerCrashed(WorkerError):
    """Every worker that tried the request crashed; the cause may be the request or the worker's code."""


class WorkerLost(WorkerError):
    """Every worker that tried the request was killed externally, so the request may be valid."""


class PoolBusy(WorkerError):
    """Too many requests are waiting, or this one waited too long."""


class WorkerPool:
    """At most `size` workers running one program (see `Worker`). Not thread-safe: use it from one event loop.

    At most `waiting` requests may wait for a worker, each for at most `wait_s` seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        arguments: Sequence[str] = (),
        greeting: bytes | None = None,
        *,
        size: int,
        waiting: int,
        wait_s: float,
    ) -> None:
        self._make: Callable[[], Worker] = partial(Worker, command, arguments, greeting)
        self._semaphore = LimitedSemaphore(size, waiting, wait_s)
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._wanted: deque[asyncio.Future[Worker]] = deque()
        self._running: set[asyncio.Task[bytes]] = set()
        self._closed = False

    async def ask(self, request: bytes) -> bytes:
        """Send a request to a worker and return its answer. Raises WorkerError."""
        if not await self._semaphore.acquire():
            raise PoolBusy
        # the work continues when a client disconnects: finishing it is cheaper than restarting the process
        working = asyncio.create_task(self._answer(request))
        self._running.add(working)
        working.add_done_callback(self._done)
        return await asyncio.shield(working)

    def close(self) -> None:
        """Kill the workers and start no more."""
        self._closed = True
        for worker in self._idle:
            worker.watched_no_more()
        self._idle.clear()
        while self._workers:
            self._workers.pop().end()

    def _done(self, working: asyncio.Task[bytes]) -> None:
        self._running.discard(working)
        self._semaphore.release()
        if not working.cancelled():
            working.exception()  # the caller may be gone

    async def _answer(self, request: bytes) -> bytes:
        status: int | None = None
        for attempt in range(_TRIES):
            if self._closed:
                raise WorkerLost
            worker = await self._next(fresh=attempt > 0)
            try:
                answer = await self._patiently(worker, request)
            except EOFError:
                status = await worker.exit_status()
                self._drop(worker)
            except BaseException:
                self._drop(worker)
                raise
            else:
                self._rest(worker)
                return answer
            if status == -signal.SIGPROF:
                raise TooCostly
        raise WorkerCrashed if _is_crash(status) else WorkerLost

    async def _patiently(self, worker: Worker, request: bytes) -> bytes:
        """Wait for the worker's answer as long as it uses CPU time; kill it otherwise. Raises EOFError."""
        asking = asyncio.create_task(worker.ask(request))
        used = -1.0
        try:
            while not (await asyncio.wait({asking}, timeout=STUCK_S))[0]:
                before, used = used, worker.processor_s()
                if used == before:
                    worker.kill()
            return asking.result()
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError, EOFError):
                await asking

    async def _next(self, fresh: bool) -> Worker:
        """Return an idle worker, one that becomes idle soon, or a new one; a new one if `fresh`: what killed a worker may have killed those
        that are idle, too. Raises WorkerLost if the pool was closed."""
        if self._idle:
            worker = self._idle.pop()
            worker.watched_no_more()
            if not fresh:
                return worker
            self._drop(worker)
        elif self._workers and not fresh and (rested := await self._rested()) is not None:
            return rested
        if self._closed:
            raise WorkerLost
        worker = self._make()
        self._workers.add(worker)
        return worker

    async def _rested(self) -> Worker | None:
        """Return the next worker that has answered; None if that takes too long."""
        wanted: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._wanted.append(wanted)
        try:
            await asyncio.wait({wanted}, timeout=PATIENCE_S)
        finally:
            if not wanted.done():
                self._wanted.remove(wanted)
        return wanted.result() if wanted.done() else None

    def _rest(self, worker: Worker) -> None:
        if worker not in self._workers:  # the pool was closed
            worker.end()
        elif self._wanted:
            self._wanted.popleft().set_result(worker)
        else:
            self._idle.append(worker)
            worker.when_lost(lambda: self._lost(worker))

    def _lost(self, worker: Worker) -> None:
        """Remove a worker that died while idle."""
        worker.watched_no_more()
        self._idle.remove(worker)
        self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        self._workers.discard(worker)
        worker.end()


def _is_crash(status: int | None) -> bool:
    """Return whether a worker ended itself: by an exception, whose status is positive, or by a signal of its own."""
    return status is not None and (status > 0 or -status in _CRASHES)
