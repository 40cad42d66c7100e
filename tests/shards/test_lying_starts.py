"""Shards that lie about themselves, and over the socket of a child: what is said before a step, and what is no message at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.grpc.shards import model
from tests.scheduler.device import quiet
from tests.shards.lying import GARBAGE, Lie, lying
from tgi_core.backend import BackendBug, BackendError, WarmupPlan
from tgi_core.cli.shard_openers import AtAddress
from tgi_core.client.base import ShardClient
from tgi_core.client.channel import ShardChannel
from tgi_core.client.grpc import GrpcShard
from tgi_core.client.local import LocalShard
from tgi_core.client.warmup import warm_up
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.framing import HEAD, frame
from tgi_core.model_files import DEMO
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.frames import MAX_BYTES, Kind, kind_frame
from tgi_core.wire.types import Decode, Turn, TurnResult

PLAN = WarmupPlan(max_rows=8, max_row_tokens=64, num_blocks=32, block_size=4)


def says(method: str, name: str, reason: str, change: Callable[[Any], Any]) -> Lie:
    """A lie of one call; what `change` returns, if anything, goes in place of the message."""

    def tell(request: Any, truth: Any) -> Any:
        told = change(truth)
        return truth if told is None else told

    return Lie(name, method, tell, reason)


def promising(name: str, reason: str, **fields: int) -> Lie:
    """A capacity with other numbers; those of its first group among them."""

    def change(truth: pb.WarmupResponse) -> None:
        for field, value in fields.items():
            place: Any = truth.capacity.groups[0] if field in ("num_blocks", "block_size", "window") else truth.capacity
            setattr(place, field, value)

    return says("Warmup", name, reason, change)


MOST = (1 << 64) - 1

STARTS = [
    says("Info", "garbage", "4 bytes that are no InfoResponse", lambda truth: GARBAGE),
    says("Info", "no vocabulary", "vocab_size 0", lambda truth: setattr(truth.capabilities, "vocab_size", 0)),
    says("Info", "a block size of nothing", "a block size of 0", lambda truth: truth.capabilities.block_sizes.append(0)),
    says("Info", "no positions", "max_positions 0", lambda truth: setattr(truth.capabilities, "max_positions", 0)),
    says("Info", "another version", "version 99", lambda truth: setattr(truth.api, "major", 99)),
    says("Warmup", "garbage", "4 bytes that are no WarmupResponse", lambda truth: GARBAGE),
    says("Warmup", "nothing", "no cache", lambda truth: truth.Clear()),
    says("Warmup", "an unknown cache", "'galaxy' is not a valid CacheKind",
         lambda truth: setattr(truth.capacity.groups[0], "kind", "galaxy")),
    promising("no blocks", "num_blocks 0", num_blocks=0),
    promising("blocks without end", "num_blocks 4611686018427387904", num_blocks=1 << 62),
    promising("blocks of nothing", "block_size 0", block_size=0),
    promising("a window of nothing", "a window of 0", window=0),
    promising("no rows", "max_rows 0", max_rows=0),
    promising("rows without end", f"max_rows {MOST}", max_rows=MOST),
    promising("rows of nothing", "max_row_tokens 0", max_row_tokens=0),
    promising("steps of nothing", "max_step_tokens 0", max_step_tokens=0),
    promising("no prompts", "max_prefill_rows 0", max_prefill_rows=0),
    promising("no step in flight", "in_flight 0", in_flight=0),
    promising("too many steps in flight", "in_flight 4294967295", in_flight=(1 << 32) - 1),
    promising("drafts without end", "draft 4294967295", draft=(1 << 32) - 1),
    says("Warmup", "a take of nothing", "a take of 0", lambda truth: truth.capacity.takes.append(0)),
    says("Warmup", "takes out of order", "a take of 4; from 9", lambda truth: truth.capacity.takes.extend((8, 4))),
    says("Warmup", "a take of more than a step", f"a take of {MOST}", lambda truth: truth.capacity.takes.append(MOST)),
]  # fmt: skip


@pytest.mark.parametrize("lie", STARTS, ids=str)
async def test_a_shard_beyond_reason_is_not_served(demo_tokenizer: Tokenizer, tmp_path: Path, lie: Lie) -> None:
    """A shard whose word about itself cannot be served ends the start, or the restart, with what it said."""
    with lying(demo_tokenizer, tmp_path / "shard", upstream_tgi=False) as liar:
        liar.arm(lie)
        with pytest.raises(StartupError, match=lie.says):
            await AtAddress(f"unix:{tmp_path / 'shard'}", DEMO, Settings()).open(lambda capabilities: PLAN, quiet)
        opened = await AtAddress(f"unix:{tmp_path / 'shard'}", DEMO, Settings()).open(lambda capabilities: PLAN, quiet)
        await opened.shard.close()


UPSTREAM_TGI_STARTS = [
    says("Info", "garbage", "4 bytes that are no InfoResponse", lambda truth: GARBAGE),
    says("Info", "drafts without end", "too few for one request", lambda truth: setattr(truth, "speculate", (1 << 32) - 1)),
    says("Info", "a block for all", "a block size of 4294967295", lambda truth: setattr(truth, "block_size", (1 << 32) - 1)),
    says("ServiceDiscovery", "garbage", "4 bytes that are no ServiceDiscoveryResponse", lambda truth: GARBAGE),
    says("ClearCache", "garbage", "4 bytes that are no ClearCacheResponse", lambda truth: GARBAGE),
    says("Warmup", "garbage", "4 bytes that are no WarmupResponse", lambda truth: GARBAGE),
    says("Warmup", "no room", "too few for one request", lambda truth: setattr(truth, "max_supported_total_tokens", 1)),
]  # fmt: skip


@pytest.mark.parametrize("lie", UPSTREAM_TGI_STARTS, ids=str)
async def test_an_upstream_tgi_shard_beyond_reason_is_not_served(demo_tokenizer: Tokenizer, tmp_path: Path, lie: Lie) -> None:
    """So it is with one that speaks TGI's API alone."""
    with lying(demo_tokenizer, tmp_path / "shard", upstream_tgi=True) as liar:
        liar.arm(lie)
        with pytest.raises(StartupError, match=lie.says):
            await AtAddress(f"unix:{tmp_path / 'shard'}", DEMO, Settings()).open(lambda capabilities: PLAN, quiet)


@pytest.mark.parametrize("upstream_tgi", [False, True], ids=["own", "upstream_tgi"])
@pytest.mark.parametrize(
    "change", [lambda truth: GARBAGE, lambda truth: setattr(truth, "state", "whim")], ids=["garbage", "a state of no kind"]
)
async def test_health_that_is_none(
    demo_tokenizer: Tokenizer, tmp_path: Path, change: Callable[[Any], Any], upstream_tgi: bool
) -> None:
    """A shard whose word about its health is no word is not healthy; one of TGI's has no words but that it answers."""
    with lying(demo_tokenizer, tmp_path / "shard", upstream_tgi) as liar:
        opened = await AtAddress(f"unix:{tmp_path / 'shard'}", DEMO, Settings()).open(lambda capabilities: PLAN, quiet)
        assert await opened.shard.healthy()
        lie = says("Health", "health", "", change)
        liar.arm(lie)
        assert await opened.shard.healthy() is (upstream_tgi and change(pb.HealthResponse()) is None)
        assert await opened.shard.healthy()
        await opened.shard.close()


TRUTH = kind_frame(Kind.MESSAGE, pb.TurnResult().SerializeToString())

FRAMES = {
    "garbage": (kind_frame(Kind.MESSAGE, GARBAGE), "4 bytes that are no TurnResult"),
    "a frame of no kind": (frame(b"\x09"), "no known kind"),
    "a frame of nothing": (frame(b""), "no known kind"),
    "a frame without end": (HEAD.pack(MAX_BYTES + 1), f"{MAX_BYTES + 1} bytes"),
    "an answer twice": (TRUTH + TRUTH, "two answers to one turn"),
    "an answer and a half": (TRUTH + TRUTH[:3], "two answers to one turn"),
    "half an answer": (kind_frame(Kind.MESSAGE, b"12345")[:-2], "the connection broke"),
    "half a head": (TRUTH[:3], "the connection broke"),
    "nothing": (b"", "the connection broke"),
    "a failure that is not UTF-8": (kind_frame(Kind.FAILURE, b"\xff\n\xff\xfe"), "the shard failed: "),
    "a failure of no words": (kind_frame(Kind.FAILURE, b""), "the shard failed: "),
    "a failure by a name of ours": (kind_frame(Kind.FAILURE, b"Scope\nwhim"), "the shard failed: whim"),
}


@asynccontextmanager
async def child() -> AsyncGenerator[tuple[GrpcShard, socket.socket], None]:
    """A shard behind a child's socket, and the other end of that."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    shard = GrpcShard(ShardChannel("unix:/nowhere"), ours)
    shard.vocab_size = 256
    with theirs:
        yield shard, theirs
    await shard.close()


async def answered(shard: GrpcShard, theirs: socket.socket, answer: bytes, last: bool = True) -> TurnResult:
    """A turn that is answered so; the `last` one."""
    loop = asyncio.get_running_loop()
    turn = asyncio.ensure_future(shard.exchange(Turn(launch=Decode(2, (1,)), read=1)))
    assert await loop.sock_recv(theirs, 1 << 16)
    await loop.sock_sendall(theirs, answer)
    if last:
        theirs.close()
    return await turn


@pytest.mark.parametrize("name", FRAMES)
async def test_frames_that_are_none(name: str) -> None:
    """Over the socket of a child: whatever is no answer is an error of the shard's that says what came, and no memory is spent on what
    it announces."""
    answer, reason = FRAMES[name]
    async with child() as (shard, theirs):
        with pytest.raises(BackendError, match=reason):
            await answered(shard, theirs, answer)


async def test_an_answer_to_nothing() -> None:
    """What comes before it is asked for ends the connection; it is not taken for the answer to what is asked next."""
    loop = asyncio.get_running_loop()
    async with child() as (shard, theirs):
        assert await answered(shard, theirs, TRUTH, last=False) == TurnResult()
        await loop.sock_sendall(theirs, TRUTH)
        assert not await loop.sock_recv(theirs, 1)
        with pytest.raises(BackendBug, match="an answer to nothing"):
            await shard.exchange(Turn())


async def test_a_backend_in_this_process_is_judged_alike(demo_tokenizer: Tokenizer) -> None:
    """A plugin's own promise beyond reason ends the start too."""
    open_model = model(demo_tokenizer)
    shard: ShardClient = LocalShard(open_model.server)
    with pytest.raises(StartupError, match="num_blocks"):
        await warm_up(shard, open_model.server.info, lambda capabilities: WarmupPlan(num_blocks=-1, block_size=4), quiet)
    await shard.close()
