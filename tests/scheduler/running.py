"""A scheduler's loop that runs while a block does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tgi_core.client.base import ShardClient
from tgi_core.scheduler import SchedulerLoop


@asynccontextmanager
async def running_loop(loop: SchedulerLoop, shard: ShardClient) -> AsyncGenerator[SchedulerLoop, None]:
    """A loop over a shard; both have ended with the block."""
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await shard.close()
