"""A shard in this process, behind the same interface as a remote one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tgi_core.backend import Capacity, Progress, WarmupPlan
from tgi_core.client.types import ShardInfo, Turn, TurnResult
from tgi_core.server.model_server import ModelServer


class LocalShard:
    """Runs a model server in one thread of its own, off the event loop."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shard")

    async def info(self) -> ShardInfo:
        """What the server has opened."""
        return self._server.info

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up in the shard's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._server.warmup, plan, progress)

    async def exchange(self, turn: Turn) -> TurnResult:
        """One turn in the shard's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._server.exchange, turn)

    async def healthy(self) -> bool:
        """A shard in this process lives as long as it does."""
        return True

    async def close(self) -> None:
        """Close the backend and end the thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._server.close)
        self._thread.shutdown(wait=False)
