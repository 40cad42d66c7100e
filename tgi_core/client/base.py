"""What the scheduler knows of a shard."""

from __future__ import annotations

from typing import Protocol

from tgi_core.backend import Capacity, Progress, WarmupPlan
from tgi_core.client.types import ShardInfo, Turn, TurnResult


class ShardClient(Protocol):
    """A model server, wherever it runs. Turns take effect in the order of the calls; at most one is under way."""

    async def info(self) -> ShardInfo:
        """What the shard has opened."""

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up and promise limits. Raises `tgi_core.backend.BackendError`."""

    async def exchange(self, turn: Turn) -> TurnResult:
        """Send one turn and wait for its answer. Raises `tgi_core.backend.DeviceLost` when the shard is gone."""

    async def healthy(self) -> bool:
        """Whether the shard answers."""

    async def close(self) -> None:
        """End the shard. Idempotent."""
