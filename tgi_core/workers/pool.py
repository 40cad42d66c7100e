"""Workers that take turns: started when first needed, ended when a request costs too much, and started again.

Measured on two busy cores: a start takes 0.2 s, once; asking costs 0.2 ms more than doing the work in this process.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from tgi_core.workers.turns import Turns
from tgi_core.workers.worker import Worker

STUCK_S = 10.0
"""A worker that uses no processor time for so long is stopped or hangs."""
_TRIES = 2
"""Workers that a request may lose: the first may have died of something else."""
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class WorkerError(Exception):
    """A request got no answer."""


class TooCostly(WorkerError):
    """It would take more processor time than it may."""


class WorkerCrashed(WorkerError):
    """Every worker that tried it crashed: it may be at fault, or the code that works on it."""


class WorkerLost(WorkerError):
    """Every worker that tried it was ended from outside, which says nothing about the request."""


class PoolBusy(WorkerError):
    """Too many requests wait, or this one has waited for too long."""


class WorkerPool:
    """At most `size` workers of one program, for which see `Worker`. Used on one event loop.

    `waiting` requests may wait for a worker, each for `wait_s` seconds at most.
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
        self._turns = Turns(size, waiting, wait_s)
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._running: set[asyncio.Task[bytes]] = set()
        self._closed = False

    async def ask(self, request: bytes) -> bytes:
        """The answer of a worker. Raises WorkerError."""
        if not await self._turns.take():
            raise PoolBusy
        # a client that leaves does not end the work: a process that must be started again costs more than its rest
        working = asyncio.create_task(self._answer(request))
        self._running.add(working)
        working.add_done_callback(self._done)
        return await asyncio.shield(working)

    def close(self) -> None:
        """End the workers; no other begins."""
        self._closed = True
        for worker in self._idle:
            worker.watched_no_more()
        self._idle.clear()
        while self._workers:
            self._workers.pop().end()

    def _done(self, working: asyncio.Task[bytes]) -> None:
        self._running.discard(working)
        self._turns.give_back()
        if not working.cancelled():
            working.exception()  # whoever asked may have left

    async def _answer(self, request: bytes) -> bytes:
        ended: signal.Signals | None = None
        for _ in range(_TRIES):
            if self._closed:
                raise WorkerLost
            worker = self._next()
            try:
                answer = await self._patiently(worker, request)
            except EOFError:
                ended = await worker.ended_by()
                self._drop(worker)
            except BaseException:
                self._drop(worker)
                raise
            else:
                self._rest(worker)
                return answer
            if ended is signal.SIGPROF:
                raise TooCostly
        raise WorkerCrashed if ended in _CRASHES else WorkerLost

    async def _patiently(self, worker: Worker, request: bytes) -> bytes:
        """Its answer, however long it takes while it works. Raises EOFError."""
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

    def _next(self) -> Worker:
        if self._idle:
            worker = self._idle.pop()
            worker.watched_no_more()
            return worker
        worker = self._make()
        self._workers.add(worker)
        return worker

    def _rest(self, worker: Worker) -> None:
        if worker not in self._workers:  # the pool is closed
            worker.end()
            return
        self._idle.append(worker)
        worker.when_lost(lambda: self._lost(worker))

    def _lost(self, worker: Worker) -> None:
        """One has died while idle: nobody notices but here."""
        worker.watched_no_more()
        self._idle.remove(worker)
        self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        self._workers.discard(worker)
        worker.end()
