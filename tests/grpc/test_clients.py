"""One suite for a shard in process and one behind a socket: the scheduler's loop cannot tell them apart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.grpc.shards import Gate, client, running
from tests.scheduler.device import alone, quiet, request
from tgi_core.backend import DeviceLost, OutOfMemory, Request, Sampling, Scope, WarmupPlan
from tgi_core.scheduler import GenerationFailed, GenerationRequest, GenerationStream
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Clear, Decode, Prefill, ShardRequest, Stopping, Turn

pytestmark = pytest.mark.parametrize("kind", ["local", "grpc"])


async def collect(stream: GenerationStream) -> list[int]:
    """All token ids of a stream."""
    return [token.id async for generation in stream for token in generation.tokens]


def wanted(index: int) -> GenerationRequest:
    """A request of its own kind."""
    return request((index, index + 1), 5 + index % 20, seed=index if index % 2 else None)


async def test_everyone_gets_their_own(kind: str, demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Forty callers at once on a cache that holds a few of them: each stream ends with what its request makes alone."""
    async with running(kind, demo_tokenizer, tmp_path) as loop:
        results = await asyncio.gather(*(collect(loop.submit(wanted(index))) for index in range(40)))
        assert loop.snapshot().running == loop.snapshot().queued == 0
        assert loop.snapshot().blocks_free == loop.snapshot().blocks_total
    assert results == [alone(demo_tokenizer, wanted(index)) for index in range(40)]


async def test_text_logprobs_and_candidates(kind: str, demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Text, logprobs to the last bit, top tokens, those of the prompt and the finished text are what the shard in process makes."""
    ids = demo_tokenizer.encode("Once upon a time").ids
    one = GenerationRequest.of(
        ids, Sampling(do_sample=True, temperature=0.7, seed=5, logit_bias=((3, 0.1),)), Stopping(9, ("zzz",), ignore_eos=True)
    )
    both = []
    for where in (kind, "local"):
        async with running(where, demo_tokenizer, tmp_path) as loop:
            both.append([generation async for generation in loop.submit(one)])
    assert both[0] == both[1] and both[0][-1].finished is not None


async def test_leaving_in_the_middle(kind: str, demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A caller that cancels after its second token gets no more; the others end as ever, and all blocks come back."""
    async with running(kind, demo_tokenizer, tmp_path) as loop:
        leaving, staying = loop.submit(request((1, 2), 60)), loop.submit(request((3, 4), 20))
        seen = 0
        async for _ in leaving:
            seen += 1
            if seen == 2:
                leaving.cancel()
        assert await collect(staying) == alone(demo_tokenizer, request((3, 4), 20))
        assert loop.snapshot().blocks_free == loop.snapshot().blocks_total


async def test_a_step_that_runs_out_of_memory(kind: str, demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A fault from reading a step costs nobody a token: the rows are continued from what they have."""
    async with running(kind, demo_tokenizer, tmp_path, faults={4: OutOfMemory("no room")}) as loop:
        results = await asyncio.gather(*(collect(loop.submit(wanted(index))) for index in range(6)))
    assert results == [alone(demo_tokenizer, wanted(index)) for index in range(6)]


async def test_a_lost_shard_fails_what_runs_and_what_comes(kind: str, demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Device lost: streams raise the reason, later requests are refused with it, and health is gone."""
    async with running(kind, demo_tokenizer, tmp_path, faults={3: DeviceLost("the device fell off")}) as loop:
        assert await loop.healthy()
        with pytest.raises(GenerationFailed, match="fell off"):
            await collect(loop.submit(request((1, 2), 20)))
        with pytest.raises(GenerationFailed, match="fell off"):
            loop.submit(request((1, 2), 20))
        assert not await loop.healthy()


async def test_ending_the_loop_ends_the_streams(kind: str, demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A stream that is open when the loop ends raises; nobody waits for ever."""
    async with running(kind, demo_tokenizer, tmp_path) as loop:
        stream = loop.submit(request((1, 2), 60))
        await anext(stream)
    with pytest.raises(GenerationFailed, match="shutting down"):
        await collect(stream)


async def test_health_while_a_step_runs(kind: str, demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A shard that is deep in a step answers that it is healthy."""
    gate = Gate()
    async with running(kind, demo_tokenizer, tmp_path, on_step=gate) as loop:
        stream = loop.submit(request((1, 2), 3))
        await asyncio.to_thread(gate.reached.wait, 60)
        assert await loop.healthy()
        gate.opened.set()
        assert len(await collect(stream)) == 3


async def test_a_refusal_changes_nothing(kind: str, demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """An unknown batch, and a number that no shard can take, are refused with the scope of a request; the turn's bookkeeping is done."""
    async with client(kind, demo_tokenizer, tmp_path) as shard:
        await shard.warmup(WarmupPlan(max_row_tokens=64), quiet)
        refused = (await shard.exchange(Turn(launch=Decode(1, (77,))))).refused
        assert refused is not None and (refused.kind, refused.scope) == ("UnknownBatch", Scope.REQUEST)
        begun = await shard.exchange(Turn(launch=Prefill(2, (_shard_request(1),)), read=2))
        assert begun.result is not None and len(begun.result.generations) == 1
        impossible = await shard.exchange(Turn((Clear(2),), Prefill(3, (_shard_request(2, take=1 << 40),))))
        assert impossible.refused is not None and impossible.refused.scope is Scope.REQUEST
        gone = (await shard.exchange(Turn(launch=Decode(4, (2,))))).refused
        assert gone is not None and gone.kind == "UnknownBatch"
        await shard.close()


def _shard_request(id: int, take: int = 1) -> ShardRequest:
    asked = request((7,))
    return ShardRequest(Request(id, (7,), 1, 0, ((id,),), take, asked.sampling, asked.want), asked.stopping)
