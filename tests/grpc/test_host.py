"""Who has the shard, and what can be known of it while it works."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import grpc
import pytest

from tests.grpc.shards import Gate, model, served
from tests.scheduler.device import quiet, request
from tgi_core.backend import DeviceLost, Request, WarmupPlan
from tgi_core.client.channel import ShardChannel
from tgi_core.client.connecting import connect
from tgi_core.client.grpc import GrpcShard
from tgi_core.model_files import DEMO
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.server.grpc_host import Model, ShardHost
from tgi_core.server.grpc_server import ShardServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.health import ShardState, TaskProgress
from tgi_core.wire.methods import V3
from tgi_core.wire.types import Prefill, ShardRequest, Turn

PLAN = WarmupPlan(max_row_tokens=64)


def prefill(step: int) -> Turn:
    """One request that begins, and is read later."""
    asked = request((7,))
    wanted = ShardRequest(Request(step, (7,), 1, 0, ((step,),), 1, asked.sampling, asked.want), asked.stopping)
    return Turn(launch=Prefill(step, (wanted,)))


async def test_a_new_router_takes_the_shard_over(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The second router starts afresh, with the same numbers; the first is told that the shard is gone. Warm-up happens once."""
    with served(demo_tokenizer, tmp_path) as server:
        first = (await connect(server.address, DEMO, demo_tokenizer, quiet)).shard
        second = (await connect(server.address, DEMO, demo_tokenizer, quiet)).shard
        capacity = await first.warmup(PLAN, quiet)
        assert (await first.exchange(prefill(1))).refused is None
        assert await second.warmup(WarmupPlan(max_row_tokens=9), quiet) == capacity
        assert (await second.exchange(prefill(1))).refused is None
        with pytest.raises(DeviceLost):
            await first.exchange(Turn(read=1))
        result = (await second.exchange(Turn(read=1))).result
        assert result is not None and [made.request_id for made in result.generations] == [1]
        await first.close()
        await second.close()


async def test_a_tgi_router_waits_its_turn(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """While one of our routers has the shard a TGI router is refused, until it clears the shard for itself."""
    with served(demo_tokenizer, tmp_path) as server:
        own = (await connect(server.address, DEMO, demo_tokenizer, quiet)).shard
        await own.warmup(PLAN, quiet)
        await own.exchange(prefill(1))
        with grpc.insecure_channel(server.address) as channel:

            def call(name: str, message: object) -> None:
                method = V3[name]
                unary = channel.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)
                unary(message, timeout=60)

            with pytest.raises(grpc.RpcError, match="another router has this shard"):
                call("Prefill", pb.PrefillRequest())
            call("ClearCache", pb.ClearCacheRequest())
            call("Prefill", pb.PrefillRequest(batch=pb.Batch(requests=[pb.Request(inputs="a", truncate=9)])))
        with pytest.raises(DeviceLost):
            await own.exchange(Turn(read=1))
        await own.close()


async def test_a_shard_that_hangs_can_be_seen(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """While a step runs, health says how long it has; before and after, how long ago the last one ended."""
    gate = Gate()
    with served(demo_tokenizer, tmp_path, on_step=gate, asynchronous=False) as server:
        shard = (await connect(server.address, DEMO, demo_tokenizer, quiet)).shard
        assert isinstance(shard, GrpcShard)
        await shard.warmup(PLAN, quiet)
        before = await shard.health()
        assert before.turn_age_ns is None and before.last_step_age_ns is None and before.state is ShardState.READY
        turn = asyncio.create_task(shard.exchange(prefill(1)))
        await asyncio.to_thread(gate.reached.wait, 60)
        during = await shard.health()
        assert during.turn_age_ns is not None and during.turns == before.turns
        gate.opened.set()
        await turn
        after = await shard.health()
        assert after.turn_age_ns is None and after.last_step_age_ns is not None and after.turns == before.turns + 1
        await shard.close()


async def test_progress_while_the_model_is_read(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A shard that still opens its model is alive: health tells how far it is, and whoever connects sees it too."""
    host, may_open = ShardHost(), threading.Event()
    server = ShardServer(host, f"unix:{tmp_path / 'shard'}")
    server.start()

    def opener() -> Model:
        host.show("loading weights", 3, 7, "B")
        assert may_open.wait(60)
        return model(demo_tokenizer)

    host.open(opener)
    seen: list[TaskProgress] = []

    def progress(what: str, done: int, total: int, unit: str) -> None:
        seen.append(TaskProgress(what, done, total, unit))
        may_open.set()

    shard = (await connect(server.address, DEMO, demo_tokenizer, progress)).shard
    assert isinstance(shard, GrpcShard) and seen[0] == TaskProgress("loading weights", 3, 7, "B")
    assert (await shard.health()).state is ShardState.OPEN and (await shard.health()).task is None
    await shard.close()
    server.stop()
    assert host.close(60)


async def test_a_model_that_does_not_open(tmp_path: Path) -> None:
    """Whoever waits for the model hears why there is none."""
    host = ShardHost()
    server = ShardServer(host, f"unix:{tmp_path / 'shard'}")
    server.start()

    def opener() -> Model:
        raise DeviceLost("the device is not there")

    shard = GrpcShard(ShardChannel(server.address))
    host.open(opener)
    with pytest.raises(DeviceLost, match="not there"):
        await shard.info()
    await shard.close()
    server.stop()
    assert host.close(60)
