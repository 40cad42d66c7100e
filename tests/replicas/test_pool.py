"""A pool of replicas: no loss changes a token, no replica idles beside a queue, and prompts go where their prefixes are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.replicas.pools import PLAN, ToyShards, answers, collect, replicas, toys
from tests.scheduler.device import alone, request, scheduled
from tgi_core.backend import DeviceLost, OutputOptions
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Phase
from tgi_core.scheduler import GenerationFailed, GenerationRequest, Overloaded
from tgi_core.scheduler.events import ReplicaState
from tgi_core.tokenizer import Tokenizer

LOST = DeviceLost("the device fell off")


def wanted(count: int, tokens: int = 30) -> list[GenerationRequest]:
    """Requests of their own kind, every other one sampled."""
    return [request((index, 2), tokens + index % 7, seed=index if index % 2 else None) for index in range(count)]


def rows(states: tuple[ReplicaState, ...]) -> list[int]:
    """The running requests of each replica."""
    return [state.load.running for state in states]


@pytest.fixture
def equally_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """No replica is slower than another, whatever else this machine does."""
    monkeypatch.setattr("tgi_core.replicas.placement._MOST_SLOWNESS", 1.0)


@pytest.mark.usefixtures("equally_fast")
async def test_requests_are_divided(demo_tokenizer: Tokenizer) -> None:
    """Thirty at once on three replicas: about ten each, all with the tokens that they get alone; the sums are those of the parts."""
    asked = wanted(30)
    async with replicas(toys(demo_tokenizer, 3)) as these:
        assert await answers(these.pool, asked) == [alone(demo_tokenizer, one) for one in asked]
        assert min(these.placed) >= 8 and sum(these.placed) - sum(each.moved for each in these.pool.replicas) == 30
        load = these.pool.snapshot()
        assert load.running == load.queued == 0 and load.blocks_free == load.blocks_total == 3 * 128
        assert load.query_tokens == sum(each.load.query_tokens for each in load.replicas)


@pytest.mark.usefixtures("equally_fast")
async def test_a_lost_replica_hands_its_requests_over(demo_tokenizer: Tokenizer) -> None:
    """A device that is lost in its third step, and its next one in its fifth: what ran there and what waited goes on elsewhere, while the
    replica is down, and the server serves all the time."""
    asked = wanted(48)
    shards = toys(demo_tokenizer, 3)
    shards[1].stock = [{"faults": {3: LOST}}]
    async with replicas(shards) as these:
        shards[1].opening.clear()
        assert await answers(these.pool, asked) == [alone(demo_tokenizer, one) for one in asked]
        states = these.pool.snapshot().replicas
        assert [state.phase for state in states] == ["serving", "restarting", "serving"]
        assert states[1].moved == states[1].placed >= 12 and states[1].losses == 1
        assert these.lifecycle.phase is Phase.SERVING and await these.pool.healthy()
        shards[1].opening.set()
        await these.pool.replicas[1].up.wait()
        assert await answers(these.pool, asked) == [alone(demo_tokenizer, one) for one in asked]
        assert these.pool.snapshot().replicas[1].placed >= states[1].placed + 12


async def test_all_are_lost_at_once(demo_tokenizer: Tokenizer) -> None:
    """While no replica serves, requests wait, new ones too; the first that is back takes them all."""
    asked = wanted(24)
    shards = toys(demo_tokenizer, 3)
    async with replicas(shards) as these:
        streams = [these.pool.submit(one) for one in asked[:12]]
        await anext(streams[0])
        for number, source in enumerate(shards):
            source.opening.clear()
            these.lose(number)
        assert these.lifecycle.phase is Phase.RESTARTING and these.lifecycle.accepts
        streams += [these.pool.submit(one) for one in asked[12:]]
        shards[2].opening.set()
        made = await asyncio.gather(*map(collect, streams))
        assert these.lifecycle.phase is Phase.SERVING
        whole = [alone(demo_tokenizer, one) for one in asked]
        assert [whole[0][1:], *whole[1:]] == made


async def test_a_rolling_replacement(demo_tokenizer: Tokenizer) -> None:
    """All shards are replaced, one after another, while requests run: each is another one afterwards, and nobody notices."""
    asked = wanted(60, 120)
    shards = toys(demo_tokenizer, 3)
    async with replicas(shards) as these:
        running = asyncio.gather(*(collect(these.pool.submit(one)) for one in asked))
        await asyncio.wait_for(these.pool.replace_all("an upgrade"), 60)
        assert [source.opened for source in shards] == [2, 2, 2]
        assert await running == [alone(demo_tokenizer, one) for one in asked]
        assert [state.losses for state in these.pool.snapshot().replicas] == [1, 1, 1]


async def test_a_bad_upgrade_stops_at_the_first(demo_tokenizer: Tokenizer) -> None:
    """A shard that does not come back is tried again, beyond the number of restarts; the others stay as they are and serve."""
    shards = toys(demo_tokenizer, 3)
    async with replicas(shards, shard_restarts=0) as these:
        shards[0].stock = [StartupError("the new release does not start")] * 9
        replacing = asyncio.create_task(these.pool.replace_all("an upgrade"))
        asked = wanted(12)
        assert await answers(these.pool, asked) == [alone(demo_tokenizer, one) for one in asked]
        while shards[0].opened < 2:
            await asyncio.sleep(0)
        assert [source.opened for source in shards[1:]] == [1, 1] and not replacing.done()
        replacing.cancel()


async def test_a_request_that_kills_shards_is_isolated(demo_tokenizer: Tokenizer) -> None:
    """One that loses every shard in its first step is given to one more replica, and stays there: a third never sees it. It ends with the
    reason, and the others are served."""
    deadly: list[dict[str, Any]] = [{"faults": {1: LOST}}]
    shards = toys(demo_tokenizer, 3)
    for source in shards:
        source.stock = deadly * 9
    async with replicas(shards) as these:
        with pytest.raises(GenerationFailed, match="fell off"):
            await collect(these.pool.submit(request((1, 2), 30)))
        assert sorted(each.placed for each in these.pool.replicas) == [0, 1, 1]


async def test_an_idle_replica_takes_from_a_queue(demo_tokenizer: Tokenizer) -> None:
    """Requests that wait behind long ones move to a replica that is done, and keep their deadlines, streams and tokens."""
    asked = [request((9, 9, 9, 9, 9, index), 40) for index in range(40)]
    async with replicas(toys(demo_tokenizer, 2, plan=replace(PLAN, max_rows=2))) as these:
        these.pool.replicas[1].lifecycle.restarting("a test")
        streams = [these.pool.submit(scheduled(one, timeout_s=60.0)) for one in asked]
        these.pool.replicas[1].lifecycle.serving()
        made = await asyncio.gather(*map(collect, streams))
        assert made == [alone(demo_tokenizer, one) for one in asked]
        assert 10 <= these.pool.replicas[0].moved <= 30
        assert sum(these.placed) - sum(each.moved for each in these.pool.replicas) == 40


async def test_leaving_wherever_the_request_is(demo_tokenizer: Tokenizer) -> None:
    """A client that leaves after its request was handed over frees its row and its blocks there."""
    async with replicas(toys(demo_tokenizer, 2)) as these:
        stream, other = these.pool.submit(request((1, 2), 100)), these.pool.submit(request((3, 4), 100))
        await anext(stream)
        these.lose(0)
        await anext(stream)
        stream.cancel()
        assert await collect(other) == alone(demo_tokenizer, request((3, 4), 100))
        while not all(each.loop.idle for each in these.pool.replicas):
            await asyncio.sleep(0)
        load = these.pool.snapshot()
        assert (load.running, load.queued, load.blocks_free) == (0, 0, load.blocks_total)
        assert not any(each.waiting for each in these.pool.replicas)


async def test_prompts_go_where_their_prefixes_are(demo_tokenizer: Tokenizer) -> None:
    """The next turn of a conversation finds what its replica has of it, also the answer; a prompt that wants its logprobs is computed."""
    async with replicas(toys(demo_tokenizer, 4)) as these:
        texts = [tuple(range(index, index + 40)) for index in range(0, 400, 100)]
        for _ in range(3):
            made = await answers(these.pool, [request(text, 20) for text in texts])
            texts = [text + tuple(answer) + (7, 7, 7) for text, answer in zip(texts, made, strict=True)]
        load = these.pool.snapshot()
        assert load.query_tokens == 4 * (40 + 63 + 86)
        assert load.hit_tokens == 4 * (4 * (59 // 4) + 4 * (82 // 4))
        plain = request(texts[0], 5)
        await collect(these.pool.submit(replace(plain, request=replace(plain.request, want=OutputOptions(prompt_logprobs=True)))))
        assert these.pool.snapshot().hit_tokens == load.hit_tokens


@pytest.mark.parametrize("bounds", [{"max_queued_requests": 6}, {"max_queued_tokens": 24}])
async def test_the_queue_has_one_end(demo_tokenizer: Tokenizer, bounds: dict[str, Any]) -> None:
    """--max-queued-requests and --max-queued-tokens count what waits for all replicas, for lost ones too."""
    async with replicas(toys(demo_tokenizer, 3), **bounds) as these:
        streams = [these.pool.submit(request((1, 2, 3, index), 5)) for index in range(5)]
        these.pool.replicas[0].lifecycle.restarting("a test")
        streams.append(these.pool.submit(request((1, 2, 3, 6), 5)))
        assert sorted(each.loop.snapshot().queued for each in these.pool.replicas) == [2, 2, 2]
        with pytest.raises(
            Overloaded, match=r"6 requests are waiting|prompts of 24 tokens are waiting; the maximum is 24"
        ) as refusal:
            these.pool.submit(request((7,), 5))
        assert refusal.value.retry_after_s >= 1.0
        these.pool.replicas[0].lifecycle.serving()
        await asyncio.gather(*map(collect, streams))
        assert await collect(these.pool.submit(request((7,), 5))) == alone(demo_tokenizer, request((7,), 5))


async def test_a_flood_makes_room_on_every_replica(demo_tokenizer: Tokenizer) -> None:
    """The client with the most requests on all replicas together loses its last ones to another client, wherever they wait; each is
    told so, also where nothing else is left to do."""
    async with replicas(toys(demo_tokenizer, 3), max_queued_requests=6) as these:
        flood = [these.pool.submit(scheduled(request((1, index), 2), client="flood")) for index in range(6)]
        polite = [these.pool.submit(scheduled(request((9, index), 30), client="polite")) for index in range(3)]
        for client in ("flood", "polite"):
            with pytest.raises(Overloaded):
                these.pool.submit(scheduled(request((7,), 5), client=client))
        ends = await asyncio.gather(*map(collect, (*flood, *polite)), return_exceptions=True)
        assert [isinstance(end, Overloaded) for end in ends] == [False] * 3 + [True] * 3 + [False] * 3
        assert not any(each.waiting for each in these.pool.replicas)


async def test_replicas_that_differ_are_refused(demo_tokenizer: Tokenizer) -> None:
    """A request could not move between them."""
    shards: list[ToyShards] = toys(demo_tokenizer, 1) + toys(demo_tokenizer, 1, plan=replace(PLAN, block_size=8))
    with pytest.raises(StartupError, match="replica 1 has blocks of another size than replica 0"):
        async with replicas(shards):
            raise AssertionError
