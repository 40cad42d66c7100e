"""The loop: many callers, one shard, exact ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.scheduler.device import RestrictedSession, alone, quiet, request
from tests.scheduler.running import running_loop
from tgi_core.backend import DeviceLost, Mixing, WarmupPlan
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.client.local import LocalShard
from tgi_core.scheduler import GenerationFailed, GenerationRequest, GenerationStream, SchedulerLoop
from tgi_core.scheduler.coalescing import OutputCoalescer
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo, Turn, TurnResult

PLAN = WarmupPlan(max_rows=8, max_row_tokens=64, num_blocks=32, block_size=4)


@asynccontextmanager
async def running(
    tokenizer: Tokenizer,
    shard: type[LocalShard] = LocalShard,
    coalescer: OutputCoalescer | None = None,
    plan: WarmupPlan = PLAN,
    **options: Any,
) -> AsyncGenerator[SchedulerLoop, None]:
    """A loop over a shard in this process."""
    restricted = RestrictedSession if "mixing" in options else ReferenceSession
    session = Session(restricted(tokenizer.vocab_size, 512, **options), "reference")
    info = ShardInfo("toy", "reference", "none", "none", (1, 0), session.capabilities())
    client = shard(ModelServer(session, tokenizer, info))
    capacity = await client.warmup(plan, quiet)
    loop = SchedulerLoop(client, info, capacity, coalescer=coalescer)
    async with running_loop(loop, client):
        yield loop


class Endless(LocalShard):
    """Says of no row that it has ended; a turn that asks for nothing takes it no time."""

    async def exchange(self, turn: Turn) -> TurnResult:
        """One turn."""
        if turn == Turn():
            return TurnResult()
        result = await super().exchange(turn)
        for made in result.result.generations if result.result is not None else ():
            made.finished = None
        return result


async def collect(stream: GenerationStream) -> list[int]:
    """All token ids of a stream."""
    return [token.id async for generation in stream for token in generation.tokens]


def wanted(index: int) -> GenerationRequest:
    """A request of its own kind."""
    return request((index, index + 1), 5 + index % 20, seed=index if index % 2 else None)


async def test_everyone_gets_their_own(demo_tokenizer: Tokenizer) -> None:
    """Forty callers at once on a cache that holds a few of them: each stream ends with what its request makes alone."""
    async with running(demo_tokenizer) as loop:
        streams = [loop.submit(wanted(index)) for index in range(40)]
        results = await asyncio.gather(*map(collect, streams))
        assert all(stream.started_at is not None and stream.started_at >= stream.queued_at for stream in streams)
        assert loop.snapshot().running == loop.snapshot().queued == 0
        assert loop.snapshot().blocks_free == loop.snapshot().blocks_total
    assert results == [alone(demo_tokenizer, wanted(index)) for index in range(40)]


async def test_leaving_in_the_middle(demo_tokenizer: Tokenizer) -> None:
    """A caller that cancels after its second token gets no more; the others end as ever, and all blocks come back."""
    async with running(demo_tokenizer) as loop:
        leaving, staying = loop.submit(request((1, 2), 60)), loop.submit(request((3, 4), 20))
        seen = 0
        async for _ in leaving:
            seen += 1
            if seen == 2:
                leaving.cancel()
        assert await collect(staying) == alone(demo_tokenizer, request((3, 4), 20))
        assert loop.snapshot().blocks_free == loop.snapshot().blocks_total


async def test_a_lost_shard_fails_what_runs_and_what_comes(demo_tokenizer: Tokenizer) -> None:
    """Device lost: streams raise the reason, later requests are refused with it, and health is gone."""
    async with running(demo_tokenizer, faults={3: DeviceLost("the device fell off")}) as loop:
        assert await loop.healthy()
        with pytest.raises(GenerationFailed, match="fell off"):
            await collect(loop.submit(request((1, 2), 20)))
        with pytest.raises(GenerationFailed, match="fell off"):
            loop.submit(request((1, 2), 20))
        assert not await loop.healthy()


async def test_ending_the_loop_ends_the_streams(demo_tokenizer: Tokenizer) -> None:
    """A stream that is open when the loop ends raises; nobody waits for ever."""
    async with running(demo_tokenizer) as loop:
        stream = loop.submit(request((1, 2), 60))
        await anext(stream)
    with pytest.raises(GenerationFailed, match="shutting down"):
        await collect(stream)


async def test_a_turn_for_nothing_takes_no_time_from_others(demo_tokenizer: Tokenizer) -> None:
    """A row that has all of its tokens and no end leaves nothing to ask for: others on the event loop get their turn, and it can be
    cancelled."""
    async with running(demo_tokenizer, Endless) as loop:
        stream = loop.submit(request((1, 2), 3))
        for _ in range(3):
            await anext(stream)
        for _ in range(100):
            await asyncio.sleep(0)
        stream.cancel()
        other = loop.submit(request((1, 2), 3))
        await anext(other)


LONG = WarmupPlan(max_rows=8, max_row_tokens=512, num_blocks=512, block_size=4)


@pytest.mark.parametrize("mixing", [Mixing.EAGER, Mixing.NONE])
async def test_who_does_not_read_gives_way(demo_tokenizer: Tokenizer, mixing: Mixing) -> None:
    """Readers that stop have all rows, in the end paused; who comes is served all the same. Read again, each gets what it makes alone."""
    async with running(demo_tokenizer, plan=LONG, without=frozenset(), mixing=mixing) as loop:
        stopped = [loop.submit(request((index, 7), 240, seed=index)) for index in range(8)]
        for index in range(12):
            assert await collect(loop.submit(request((index,), 30))) == alone(demo_tokenizer, request((index,), 30))
        assert loop.snapshot().paused == 8
        results = await asyncio.gather(*map(collect, stopped))
        load = loop.snapshot()
        assert (load.running, load.paused, load.blocks_free) == (0, 0, load.blocks_total)
    assert results == [alone(demo_tokenizer, request((index, 7), 240, seed=index)) for index in range(8)]
