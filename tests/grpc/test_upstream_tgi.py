"""A v3 shard that announces no API of ours serves our scheduler, in TGI's own way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.grpc.shards import client, running
from tests.scheduler.device import quiet
from tgi_core.backend import Feature, InvalidRequest, Mixing, OutOfMemory, OutputOptions, Sampling, WarmupPlan
from tgi_core.client.upstream_tgi.shard import UpstreamShard
from tgi_core.client.upstream_tgi.text import text_of
from tgi_core.scheduler import GenerationFailed, GenerationRequest, GenerationStream
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Generation, Stopping

PLAN = WarmupPlan(max_rows=4, max_row_tokens=64, max_step_tokens=256)
TEXTS = ("Once upon a time", "The sea", "Why is the sky blue?", "Hello", "Grüße aus 東京")


async def collect(stream: GenerationStream) -> list[Generation]:
    """Everything of a stream."""
    return [generation async for generation in stream]


def wanted(tokenizer: Tokenizer, index: int) -> GenerationRequest:
    """A request of its own kind; its temperature is the same number in single precision."""
    sampling = Sampling(do_sample=True, temperature=1.25, seed=index) if index % 2 else Sampling()
    stopping = Stopping(3 + index % 15, ignore_eos=True)
    return GenerationRequest.of(tokenizer.encode(TEXTS[index % len(TEXTS)]).ids, sampling, stopping, OutputOptions(top_n=2))


async def test_a_whole_conversation(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Twenty callers at once, four rows at a time: each gets the tokens and the text that our own shard makes of its request."""
    results = []
    for kind in ("local", "upstream_tgi"):
        async with running(kind, demo_tokenizer, tmp_path, PLAN) as loop:
            streams = [loop.submit(wanted(demo_tokenizer, index)) for index in range(20)]
            results.append(await asyncio.gather(*map(collect, streams)))
            assert loop.snapshot().blocks_free == loop.snapshot().blocks_total
    own, upstream_tgi = ([[(t.id, t.text, t.special) for g in one for t in g.tokens] for one in both] for both in results)
    assert upstream_tgi == own
    assert [one[-1].finished for one in results[0]] == [one[-1].finished for one in results[1]]
    assert len(results[1][0][0].tokens[0].top) == 2


async def test_what_the_scheduler_is_told(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A device with places for whole requests, one step at a time, that neither mixes nor splits prompts; and health."""
    async with client("upstream_tgi", demo_tokenizer, tmp_path) as shard:
        assert isinstance(shard, UpstreamShard) and await shard.healthy()
        capabilities = (await shard.info()).capabilities
        assert capabilities.mixing is Mixing.NONE and Feature.CHUNKED_PREFILL not in capabilities.features
        capacity = await shard.warmup(PLAN, quiet)
        assert (capacity.in_flight, capacity.max_rows, capacity.max_row_tokens) == (1, 4, 64)
        assert capacity.groups[0].block_size == 64
        await shard.close()
        assert not await shard.healthy()


async def test_leaving(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A caller that leaves is filtered out at the shard; its place serves others."""
    async with running("upstream_tgi", demo_tokenizer, tmp_path, PLAN) as loop:
        for _ in range(6):
            leaving = [loop.submit(wanted(demo_tokenizer, 14)) for _ in range(3)]
            staying = loop.submit(wanted(demo_tokenizer, 8))
            await asyncio.gather(*map(anext, leaving))
            for stream in leaving:
                stream.cancel()
            assert (await collect(staying))[-1].finished is not None


async def test_a_step_that_fails_fails_its_requests(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """As with TGI's router: those who were in the step get the shard's text, those who come later are served."""
    async with running("upstream_tgi", demo_tokenizer, tmp_path, PLAN, faults={3: OutOfMemory("no room on the device")}) as loop:
        with pytest.raises(GenerationFailed, match="no room on the device"):
            await collect(loop.submit(wanted(demo_tokenizer, 8)))
        assert (await collect(loop.submit(wanted(demo_tokenizer, 2))))[-1].finished is not None


async def test_a_prompt_without_text(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Token ids that no text stands for cannot be sent to a shard that takes text: that request alone is refused."""
    half = demo_tokenizer.encode("東").ids[-1:]
    with pytest.raises(InvalidRequest):
        text_of(half, demo_tokenizer)
    async with running("upstream_tgi", demo_tokenizer, tmp_path, PLAN) as loop:
        bad = loop.submit(GenerationRequest.of(half, Sampling(), Stopping(5)))
        good = loop.submit(wanted(demo_tokenizer, 2))
        with pytest.raises(GenerationFailed, match="no text"):
            await collect(bad)
        assert (await collect(good))[-1].finished is not None
