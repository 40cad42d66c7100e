"""A backend that decides the size of its blocks in warm-up, so that one holds a whole row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.grpc.shards import PLAN, client, model, running, served
from tests.grpc.test_lockstep import batch, connected, wanted
from tests.scheduler.device import alone, quiet, request
from tgi_core.backend import CacheKind, Capabilities, Capacity, Progress, WarmupPlan, hookimpl
from tgi_core.backend.reference import ReferenceSession
from tgi_core.client.channel import ShardChannel
from tgi_core.client.local import LocalShard
from tgi_core.client.warmup import warm_up
from tgi_core.errors import StartupError
from tgi_core.proto.generate.v2 import generate_pb2 as v2
from tgi_core.proto.generate.v3 import generate_pb2 as v3
from tgi_core.tokenizer import Tokenizer

SLOTS = 8


class WholeRows(ReferenceSession):
    """The toy model in slots."""

    length = 0
    """Tokens of a slot; 0: as many as a row may have."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Without block sizes."""
        return replace(super().capabilities(), block_sizes=())

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Slots as long as rows may be, whatever size the plan names."""
        longest = plan.max_row_tokens or 512
        capacity = super().warmup(replace(plan, block_size=longest, num_blocks=SLOTS, max_rows=SLOTS), progress)
        return replace(capacity, groups=(replace(capacity.groups[0], block_size=self.length or longest),))


class ShortSlots(WholeRows):
    """Its slots do not hold a row."""

    length = 16


@pytest.mark.parametrize("kind", ["local", "grpc"])
async def test_it_serves(demo_tokenizer: Tokenizer, tmp_path: Path, kind: str) -> None:
    """All slots can be used, and a row makes what it makes elsewhere."""
    wanted = request((1, 2, 3), 9)
    async with running(kind, demo_tokenizer, tmp_path, PLAN, session_class=WholeRows) as loop:
        assert loop.snapshot().blocks_total == SLOTS
        made = [token.id async for generation in loop.submit(wanted) for token in generation.tokens]
        assert made == alone(demo_tokenizer, wanted)


async def test_a_slot_must_hold_a_row(demo_tokenizer: Tokenizer) -> None:
    """Otherwise the start fails, with the two numbers."""
    opened = model(demo_tokenizer, session_class=ShortSlots)
    shard = LocalShard(opened.server)
    with pytest.raises(StartupError, match="block_size 16; from 64 to"):
        await warm_up(shard, opened.server.info, lambda capabilities: PLAN, quiet)
    await shard.close()


async def test_a_router_of_tgis_counts_slots(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """It asks for the block size before warm-up, and afterwards divides the shard's tokens by it: that makes the slots."""
    with served(demo_tokenizer, tmp_path, session_class=WholeRows) as server:
        channel = ShardChannel(server.address)
        info = await channel.call("Info", v3.InfoRequest())
        warmed = await channel.call("Warmup", v3.WarmupRequest(max_input_tokens=16, max_prefill_tokens=64, max_total_tokens=32))
        await channel.close()
    assert warmed.max_supported_total_tokens / info.block_size == SLOTS
    assert (warmed.max_input_tokens, warmed.max_total_tokens) == (16, 32)


async def test_a_client_learns_it_over_the_socket(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """No sizes before warm-up, and one after it."""
    async with client("grpc", demo_tokenizer, tmp_path, session_class=WholeRows) as shard:
        assert (await shard.info()).capabilities.block_sizes == ()
        capacity = await shard.warmup(replace(PLAN, block_size=3), quiet)
        assert capacity.groups[0].block_size == PLAN.max_row_tokens
        await shard.close()


class OnlyStates(WholeRows):
    """The toy model with one state per row, however long it is."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """A state for each row."""
        capacity = super().warmup(plan, progress)
        return replace(capacity, groups=(replace(capacity.groups[0], kind=CacheKind.STATE),))


@pytest.mark.parametrize("pb", [v3, v2], ids=["v3", "v2"])
def test_a_router_of_tgis_gets_states(demo_tokenizer: Tokenizer, tmp_path: Path, pb: ModuleType) -> None:
    """Where no block holds positions, room for tokens is no limit."""
    with served(demo_tokenizer, tmp_path, session_class=OnlyStates) as server:
        channel, call = connected(server.address, pb)
        warmed = call("Warmup", batch=pb.Batch(), max_prefill_tokens=64, max_total_tokens=32)
        first = call("Prefill", batch=batch(pb, 0, wanted(pb, 1, "The sea", 3)))
        channel.close()
    assert warmed.max_supported_total_tokens >= 32 * SLOTS and len(first.generations) == 1
