"""Adapters behind every kind of client: announced by the shard, named by requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.grpc.shards import client, running, served
from tests.scheduler.device import quiet
from tgi_core.backend import Feature, Sampling, WarmupPlan
from tgi_core.client.channel import ShardChannel
from tgi_core.client.child import open_child_shard
from tgi_core.model_files import DEMO
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.scheduler import GenerationFailed, GenerationRequest, SchedulerLoop
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Stopping

PLAN = WarmupPlan(max_rows=8, max_row_tokens=64, max_step_tokens=256)
NAMES = ("poet", "org/cook")


def asked(tokenizer: Tokenizer, adapter: str | None) -> GenerationRequest:
    """The same prompt, with an adapter or without."""
    return GenerationRequest.of(tokenizer.encode("The sea").ids, Sampling(), Stopping(6, ignore_eos=True), adapter=adapter)


async def answer(loop: SchedulerLoop, request: GenerationRequest) -> list[int]:
    """Its tokens."""
    return [token.id async for generation in loop.submit(request) for token in generation.tokens]


async def test_every_client_passes_the_name_on(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """In process, over our stream and in TGI's own way, rows of one batch get the adapters that their requests name."""
    results = []
    for kind in ("local", "grpc", "upstream_tgi"):
        async with running(kind, demo_tokenizer, tmp_path, PLAN, adapters=NAMES) as loop:
            requests = [asked(demo_tokenizer, name) for name in (None, *NAMES)]
            results.append(await asyncio.gather(*(answer(loop, request) for request in requests)))
    assert results[0] == results[1] == results[2]
    assert len({str(tokens) for tokens in results[0]}) == 3


async def test_a_shard_announces_its_adapters(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """What a shard has loaded is in its capabilities, in process and behind a socket; one without any has no such feature."""
    for kind in ("local", "grpc"):
        async with client(kind, demo_tokenizer, tmp_path, adapters=NAMES) as shard:
            capabilities = (await shard.info()).capabilities
            assert capabilities.adapters == NAMES and Feature.LORA in capabilities.features
            await shard.close()
    async with client("grpc", demo_tokenizer, tmp_path) as shard:
        capabilities = (await shard.info()).capabilities
        assert capabilities.adapters == () and Feature.LORA not in capabilities.features
        await shard.close()


async def test_a_name_that_a_shard_does_not_know(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """One of our routers never sends it; if one does, its request fails alone and the next is served."""
    async with running("grpc", demo_tokenizer, tmp_path, PLAN, adapters=NAMES) as loop:
        with pytest.raises(GenerationFailed, match="not loaded"):
            await answer(loop, asked(demo_tokenizer, "nobody"))
        assert await answer(loop, asked(demo_tokenizer, "poet"))


@pytest.mark.parametrize("name", ["dummy", "", "../poet", "/etc/passwd"])
async def test_a_router_of_tgis_may_send_any_name(demo_tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    """To a shard of ours an unknown name from TGI's router means the model itself, as it does to TGI's."""
    with served(demo_tokenizer, tmp_path, adapters=NAMES) as server:
        channel = ShardChannel(server.address)
        await channel.call("Warmup", pb.WarmupRequest(max_input_tokens=16, max_prefill_tokens=64, max_total_tokens=32))
        made = []
        for number, adapter in enumerate((None, name, "poet"), 1):
            request = pb.Request(
                id=number,
                inputs="The sea",
                truncate=16,
                adapter_id=adapter,
                stopping_parameters=pb.StoppingCriteriaParameters(max_new_tokens=2),
            )
            batch = pb.Batch(id=number, requests=[request], size=1, max_tokens=32)
            answer = await channel.call("Prefill", pb.PrefillRequest(batch=batch))
            made.append(answer.generations[0].tokens.ids[0])
            await channel.call("ClearCache", pb.ClearCacheRequest(id=number))
        await channel.close()
    assert made[0] == made[1] != made[2]


async def test_a_child_gets_them_by_its_flag(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """`tgi shard --lora-adapters` opens them; the parent learns their names from the child."""
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    arguments = ["--backend", "reference", "--lora-adapters", f"poet={tmp_path}"]
    child = await open_child_shard(DEMO, arguments, lambda _: WarmupPlan(max_row_tokens=64), quiet)
    await child.shard.close()
    assert child.info.capabilities.adapters == ("poet",)
