"""Client of a shard in this process, with the same interface as a remote one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from tgi_core.backend import Capacity, DeviceLost, Progress, WarmupPlan
from tgi_core.client.grammars import HeldGrammars, Release
from tgi_core.grammar import Cost, Grammar
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.server.model_server import ModelServer
from tgi_core.wire.types import ShardInfo, Turn, TurnResult

T = TypeVar("T")


class LocalShard:
    """Runs a model server in its own thread, off the event loop."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._thread = _ShardThread()
        self._grammars = HeldGrammars(self._prepare, self._drop)
        self._turn: asyncio.Future[TurnResult] | None = None
        self._abandoned = False
        self._closing: asyncio.Future[None] | None = None

    async def info(self) -> ShardInfo:
        """Return the description of the open server."""
        return self._server.info

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up in the shard's thread."""
        return await self._thread.submit(lambda: self._server.warmup(plan, progress))

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Compile a grammar in the server's own threads. Raises InvalidGrammar, GrammarsBusy."""
        return await self._grammars.hold(grammar, cost)

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Tokenize a prompt with images in the server's worker processes. Raises ImageRejected, MediaBusy."""
        return await asyncio.wrap_future(self._server.tokenize_images(prompt))

    async def exchange(self, turn: Turn) -> TurnResult:
        """Execute one turn in the shard's thread. Raises DeviceLost once the shard is abandoned."""
        self._turn = self._thread.submit(lambda: self._server.exchange(turn))
        try:
            return await self._turn
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._abandoned or (task is not None and task.cancelling()):
                raise
            raise DeviceLost("the shard was given up") from None

    async def healthy(self) -> bool:
        """Return True: a shard in this process lives as long as the process."""
        return True

    async def ended(self) -> str:
        """Wait forever: the shard ends with this process."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def abandon(self) -> None:
        """Stop waiting for the turn in progress. A thread cannot be killed, so the turn runs to its end."""
        self._abandoned = True
        if self._turn is not None:
            self._turn.cancel()

    async def close(self) -> None:
        """Close the backend and end the thread, after its current call. Idempotent."""
        if self._closing is None:
            self._closing = self._thread.submit(self._server.close)
            self._thread.end()
        await asyncio.shield(self._closing)

    async def _prepare(self, grammar: Grammar, cost: Cost) -> None:
        await asyncio.wrap_future(self._server.prepare(grammar, cost))

    async def _drop(self, grammar: Grammar) -> None:
        self._server.release(grammar)


class _ShardThread:
    """Runs calls one after another in a daemon thread: otherwise, a hung device would keep the process alive."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="shard", daemon=True).start()

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` in the thread, unless its future is cancelled first. The result takes one hop between threads; a
        `concurrent.futures` future would take two."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                settle = partial(_settle, future, call())
            except BaseException as error:  # noqa: BLE001  raised where the result is awaited
                settle = partial(_fail, future, error)
            with suppress(RuntimeError):  # nothing waits for the result on a closed loop
                loop.call_soon_threadsafe(settle)

        self._work.put(work)
        return future

    def end(self) -> None:
        """End the thread after all calls have completed."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
