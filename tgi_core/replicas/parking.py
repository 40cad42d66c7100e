"""Replicas without a shard: a gate in front of the opener, and a client while there is none."""

from __future__ import annotations

import asyncio

from tgi_core.backend import Capacity, DeviceLost, Progress, WarmupPlan
from tgi_core.client.base import Opener, Plan, ReadyShard
from tgi_core.client.grammars import Release
from tgi_core.grammar import Cost, Grammar
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.wire.types import ShardInfo, Turn, TurnResult


class GatedOpener:
    """Opens shards while `gate` is set, and waits for it otherwise."""

    def __init__(self, opener: Opener, gate: asyncio.Event) -> None:
        self._opener, self._gate = opener, gate

    async def open(self, plan: Plan, progress: Progress) -> ReadyShard:
        """Wait for the gate, then open a shard. Raises StartupError."""
        await self._gate.wait()
        return await self._opener.open(plan, progress)


class NoShard:
    """A `ShardClient` in place of a shard that has not been opened yet."""

    def __init__(self, like: ReadyShard) -> None:
        self._like = like

    async def info(self) -> ShardInfo:
        """Return the description of the other shards."""
        return self._like.info

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Return the capacity of the other shards."""
        return self._like.capacity

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Raise DeviceLost."""
        raise DeviceLost("the shard is not open yet")

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Raise DeviceLost."""
        raise DeviceLost("the shard is not open yet")

    async def exchange(self, turn: Turn) -> TurnResult:
        """Raise DeviceLost."""
        raise DeviceLost("the shard is not open yet")

    async def healthy(self) -> bool:
        """Return false."""
        return False

    async def ended(self) -> str:
        """Wait forever."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def abandon(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""
