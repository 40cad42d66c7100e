"""A shard in this process, behind the same interface as a remote one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tgi_core.backend import Capacity, DeviceLost, Progress, WarmupPlan
from tgi_core.client.types import ShardInfo, Turn, TurnResult
from tgi_core.server.model_server import ModelServer


class LocalShard:
    """Runs a model server in one thread of its own, off the event loop."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shard")
        self._turn: asyncio.Future[TurnResult] | None = None
        self._abandoned = False

    async def info(self) -> ShardInfo:
        """What the server has opened."""
        return self._server.info

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up in the shard's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._server.warmup, plan, progress)

    async def exchange(self, turn: Turn) -> TurnResult:
        """One turn in the shard's thread. Raises DeviceLost once it is abandoned."""
        self._turn = asyncio.get_running_loop().run_in_executor(self._thread, self._server.exchange, turn)
        try:
            return await self._turn
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._abandoned or (task is not None and task.cancelling()):
                raise
            raise DeviceLost("the shard was given up") from None

    async def healthy(self) -> bool:
        """A shard in this process lives as long as it does."""
        return True

    async def ended(self) -> str:
        """Never: it ends with this process."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def abandon(self) -> None:
        """Stop waiting for the turn under way. A thread cannot be killed: it goes on for as long as it takes."""
        self._abandoned = True
        if self._turn is not None:
            self._turn.cancel()

    async def close(self) -> None:
        """Close the backend and end the thread; waits for what the thread is doing. Idempotent."""
        try:
            closing = asyncio.get_running_loop().run_in_executor(self._thread, self._server.close)
        except RuntimeError:
            return  # it is closed
        self._thread.shutdown(wait=False)
        await closing
