"""How much of conversations is found in the caches of several replicas, compared with one cache as big as all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.replicas.__main__ import simulate
from tests.replicas.pools import PLAN, collect, replicas, toys
from tests.scheduler.device import request
from tests.scheduler.test_loop import running
from tgi_core.scheduler import GenerationRequest, GenerationStream
from tgi_core.tokenizer import Tokenizer

COUNT, CONVERSATIONS, TURNS = 4, 21, 5
AT_ONCE = 7


async def converse(submit: Callable[[GenerationRequest], GenerationStream]) -> None:
    """Conversations that take turns, some at the same time; one of three system prompts begins each."""
    texts = [(*range(index % 3, 24 + index % 3), index, index) for index in range(CONVERSATIONS)]
    for turn in range(TURNS):
        for first in range(0, CONVERSATIONS, AT_ONCE):
            speaking = range(first, first + AT_ONCE)
            asked = [request((*texts[index], *range(100 + turn, 110 + turn)), 9) for index in speaking]
            made = await asyncio.gather(*(collect(submit(one)) for one in asked))
            for index, one, answer in zip(speaking, asked, made, strict=True):
                texts[index] = (*one.input_ids, *answer)


async def test_real_schedulers(demo_tokenizer: Tokenizer) -> None:
    """Four caches with room for their conversations find at least nine tenths of what one of their size does; in turn, they find less."""
    small, big = (replace(PLAN, num_blocks=count * 192) for count in (1, COUNT))
    async with running(demo_tokenizer, plan=big) as loop:
        await converse(loop.submit)
        most = loop.snapshot()
    async with replicas(toys(demo_tokenizer, COUNT, plan=small)) as these:
        await converse(these.pool.submit)
        placed = these.pool.snapshot()
    async with replicas(toys(demo_tokenizer, COUNT, plan=small)) as these:
        turns = itertools.cycle(these.pool.replicas)
        await converse(lambda one: next(turns).loop.submit(one))
        in_turn = these.pool.snapshot()
    assert placed.query_tokens == in_turn.query_tokens == most.query_tokens
    assert placed.hit_tokens >= 0.9 * most.hit_tokens and in_turn.hit_tokens < 0.75 * most.hit_tokens


@pytest.mark.parametrize("count", [4, 25])
def test_in_virtual_time(count: int) -> None:
    """The same code on replicas that are modelled: at least nine tenths of the big cache's hits, many more than in turn, and nobody waits
    longer for it."""
    ours, in_turn = (simulate(policy, count, 60.0 if count == 4 else 10.0, 1.0) for policy in ("prefix and load", "round robin"))
    assert ours.requests == in_turn.requests > 500
    assert ours.hit_tokens >= 0.9 * ours.big_cache_hit_tokens and ours.hit_tokens >= 1.2 * in_turn.hit_tokens
    assert ours.good >= in_turn.good and ours.first_p99 <= in_turn.first_p99
