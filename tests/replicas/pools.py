"""Pools of replicas on the toy model, in this process, put together as `tgi serve` does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from tests.scheduler.device import quiet
from tgi_core.backend import Progress, WarmupPlan
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.cli.loops import start
from tgi_core.client.base import Plan, ReadyShard
from tgi_core.client.local import LocalShard
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Lifecycle, Phase
from tgi_core.replicas import ReplicaPool
from tgi_core.scheduler import GenerationRequest, GenerationStream
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

PLAN = WarmupPlan(max_rows=8, max_row_tokens=256, num_blocks=128, block_size=4)


@dataclass
class ToyShards:
    """Opens shards of one replica, one for each list of options, or fails to; then shards without options. `opening` is cleared by a test
    that keeps the next shard back."""

    tokenizer: Tokenizer
    stock: list[dict[str, Any] | StartupError] = field(default_factory=list)
    plan: WarmupPlan = PLAN
    opened: int = 0
    opening: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.opening.set()

    async def open(self, plan: Plan, progress: Progress) -> ReadyShard:
        """The next shard."""
        await self.opening.wait()
        self.opened += 1
        options = self.stock.pop(0) if self.stock else {}
        if isinstance(options, StartupError):
            raise options
        session = Session(ReferenceSession(self.tokenizer.vocab_size, 512, **options), "reference")
        info = ShardInfo("toy", "reference", "none", "none", (1, 0), session.capabilities())
        shard = LocalShard(ModelServer(session, self.tokenizer, info))
        return ReadyShard(shard, info, await shard.warmup(self.plan, quiet))


@dataclass
class Replicas:
    """A pool with its parts."""

    pool: ReplicaPool
    lifecycle: Lifecycle
    shards: list[ToyShards]
    registry: CollectorRegistry

    def lose(self, number: int, reason: str = "it was unplugged") -> None:
        """Replace a replica's shard."""
        self.pool.replicas[number].loop.replace_shard(reason)

    @property
    def placed(self) -> list[int]:
        """The number of requests that each replica was given."""
        return [each.placed for each in self.pool.replicas]


@asynccontextmanager
async def replicas(shards: list[ToyShards], count: int | None = None, **settings: Any) -> AsyncIterator[Replicas]:
    """A running pool, of which so many replicas are open at first; all of them, if nothing is said."""
    lifecycle, registry = Lifecycle(Phase.SERVING), CollectorRegistry()
    opened = [await each.open(lambda capabilities: each.plan, quiet) for each in shards[:count]]  # noqa: B023
    settings = {"replicas": len(opened), "max_replicas": len(shards)} | settings
    async with AsyncExitStack() as stack:
        serving = start(shards, opened, Settings(**settings), registry, lifecycle, stack)
        assert isinstance(serving.generator, ReplicaPool)
        yield Replicas(serving.generator, lifecycle, shards, registry)


def toys(tokenizer: Tokenizer, count: int, **options: Any) -> list[ToyShards]:
    """Sources of shards for so many replicas."""
    return [ToyShards(tokenizer, **options) for _ in range(count)]


async def collect(stream: GenerationStream) -> list[int]:
    """All token ids of a stream."""
    return [token.id async for generation in stream for token in generation.tokens]


async def answers(pool: ReplicaPool, asked: list[GenerationRequest]) -> list[list[int]]:
    """What each request gets, all at once."""
    return await asyncio.gather(*(collect(pool.submit(one)) for one in asked))
