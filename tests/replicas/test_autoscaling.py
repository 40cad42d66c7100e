"""Replicas that are opened while requests wait and closed when there is little to do: no token changes, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replicas.pools import PLAN, Replicas, answers, collect, replicas, toys
from tests.scheduler.device import alone, request
from tgi_core.backend import DeviceLost
from tgi_core.cli.loops import scaling_rules
from tgi_core.client.local import LocalShard
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Phase
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.replicas.autoscaling import Autoscaler, PoolLoad, ScalingRules
from tgi_core.tokenizer import Tokenizer

RULES = ScalingRules(1, 4, wait_s=2.0, idle_s=60.0)
TWO_ROWS = replace(PLAN, max_rows=2)


@given(
    st.integers(0, 3),
    st.integers(1, 4),
    st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 9)), st.integers(0, 200), st.booleans()), min_size=1, max_size=60),
)
def test_it_stays_within_the_limits(least: int, more: int, course: list[tuple[float | None, int, bool]]) -> None:
    """Whatever the load: from `least` to `most`, one at a time, none is closed while a request waits, and one is open for any that does."""
    scaler, open_now, now = Autoscaler(ScalingRules(least, least + more, 1.0, 3.0)), max(1, least), 0.0
    for wait, rows, opening in course:
        load = PoolLoad(open_now, min(open_now, opening), wait, rows, 32)
        change = scaler.decide(load, now)
        assert change in (-1, 0, 1) and not (change < 0 and wait is not None)
        open_now, now = open_now + change, now + 1.0
        assert least <= open_now <= least + more and (wait is None or open_now)


def test_one_is_opened_for_a_queue_and_closed_after_quiet() -> None:
    """A wait beyond the limit opens one, and no other while that is being opened; one is closed after a minute of room for all."""
    scaler = Autoscaler(RULES)
    assert scaler.decide(PoolLoad(1, 0, 1.9, 40, 32), 0.0) == 0
    assert scaler.decide(PoolLoad(1, 0, 2.0, 40, 32), 1.0) == 1
    assert scaler.decide(PoolLoad(2, 1, 9.0, 60, 32), 2.0) == 0
    assert scaler.decide(PoolLoad(2, 0, None, 17, 32), 3.0) == 0, "17 rows are more than half of one replica"
    course = [scaler.decide(PoolLoad(2, 0, None, 16, 32), at) for at in (100.0, 159.0, 160.0)]
    assert course == [0, 0, -1]
    assert scaler.decide(PoolLoad(1, 0, None, 0, 32), 999.0) == 0, "the least number"


async def until(holds: Callable[[], bool]) -> None:
    """Let others run until it holds."""
    while not holds():
        await asyncio.sleep(0.005)


def phases(these: Replicas) -> list[str]:
    """Those of the replicas."""
    return [state.phase for state in these.pool.snapshot().replicas]


async def test_to_three_and_to_none_and_back(demo_tokenizer: Tokenizer) -> None:
    """Requests wait for the one replica, so two more are opened; then all are closed, and the server is still ready; the next request
    opens one. All tokens are those of a request alone, and a closed replica is no loss."""
    asked = [request((index, 2), 120, seed=index if index % 2 else None) for index in range(60)]
    limits = {"min_replicas": 0, "scale_up_wait": 0.0, "scale_down_delay": 0.1}
    async with replicas(toys(demo_tokenizer, 3, plan=TWO_ROWS), count=1, **limits) as these:
        assert phases(these) == ["serving", "parked", "parked"]
        running = asyncio.ensure_future(answers(these.pool, asked))
        await until(lambda: phases(these) == ["serving"] * 3)
        assert await running == [alone(demo_tokenizer, one) for one in asked]
        await until(lambda: phases(these) == ["parked"] * 3)
        load = these.pool.snapshot()
        assert (load.blocks_total, [state.losses for state in load.replicas]) == (0, [0, 0, 0])
        assert these.lifecycle.phase is Phase.SERVING and await these.pool.healthy() and these.pool.sound
        assert await collect(these.pool.submit(asked[1])) == alone(demo_tokenizer, asked[1])
        assert [source.opened for source in these.shards] != [1, 1, 1]


async def test_images_open_one_and_leave_those_that_close(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt with images waits for a replica before it is a request: one is opened for it. If that closes meanwhile, the prompt goes on
    where another is open."""
    tokens, asked, closed = PromptTokens((1, 2), ()), list[LocalShard](), asyncio.Event()

    async def tokenize(shard: LocalShard, prompt: MultimodalPrompt) -> PromptTokens:
        asked.append(shard)
        if len(asked) == 2:
            await closed.wait()
            raise DeviceLost("it was closed")
        return tokens

    monkeypatch.setattr(LocalShard, "tokenize_images", tokenize)
    prompt = MultimodalPrompt(("",), (b"",), special=True)
    async with replicas(toys(demo_tokenizer, 2), count=1, min_replicas=0, scale_down_delay=0.1) as these:
        await until(lambda: phases(these) == ["parked"] * 2)
        assert await these.pool.tokenize_images(prompt) == tokens
    async with replicas(toys(demo_tokenizer, 2)) as these:
        running = asyncio.ensure_future(these.pool.tokenize_images(prompt))
        await until(lambda: len(asked) == 2)
        these.pool.replicas[0].park("a test")
        await until(lambda: "parked" in phases(these))
        closed.set()
        assert await running == tokens and len(asked) == 3 and asked[1] is not asked[2]


async def test_a_closed_replica_hands_its_requests_over(demo_tokenizer: Tokenizer) -> None:
    """Closed in the middle of answers: these continue on the other, token for token, and none is dropped."""
    asked = [request((index, 2), 200) for index in range(8)]
    async with replicas(toys(demo_tokenizer, 2)) as these:
        streams = [these.pool.submit(one) for one in asked]
        first = [await anext(stream) for stream in streams]
        these.pool.replicas[1].park("a test")
        made = await asyncio.gather(*map(collect, streams))
        whole = [[token.id for token in one.tokens] + rest for one, rest in zip(first, made, strict=True)]
        assert whole == [alone(demo_tokenizer, one) for one in asked]
        assert phases(these) == ["serving", "parked"] and these.pool.replicas[1].moved >= 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"replicas": 2, "max_replicas": 1}, "--replicas 2: the server starts with so many; it must be from"),
        ({"min_replicas": 3}, "--min-replicas 3 to --max-replicas 3"),
        ({"max_replicas": 2, "on_shard_loss": "fail"}, "--on-shard-loss fail: with --min-replicas or --max-replicas"),
    ],
)
def test_limits_that_contradict_each_other(settings: dict[str, int], words: str) -> None:
    """Refused before anything is read."""
    with pytest.raises(StartupError, match=words):
        scaling_rules(Settings(**settings))  # type: ignore[arg-type]


def test_without_limits_nothing_is_scaled() -> None:
    """As many replicas as asked for, all the time."""
    rules = scaling_rules(Settings(replicas=3))
    assert (rules.least, rules.most) == (3, 3)
