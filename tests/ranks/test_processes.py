"""`tgi shard` on two ranks, as processes, on the bundled model: started by rank 0, and each by hand."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from tests.scheduler.device import quiet, request
from tests.scheduler.running import running_loop
from tests.serve.process import TGI, environment, run
from tgi_core.backend import Group, OpenOptions, Processes, WarmupPlan
from tgi_core.backend.registry import find, open_backend
from tgi_core.backend.session import Session
from tgi_core.cli.ranks import open_ranks
from tgi_core.client.base import ShardClient
from tgi_core.client.channel import ShardChannel
from tgi_core.client.connecting import connect
from tgi_core.client.local import LocalShard
from tgi_core.config import Settings
from tgi_core.grammar import Grammar
from tgi_core.grammar.value import GrammarKind
from tgi_core.model_files import DEMO
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.scheduler import GenerationFailed, GenerationRequest, GenerationStream, SchedulerLoop
from tgi_core.server.masks import GrammarMasks
from tgi_core.server.model_server import ModelServer
from tgi_core.shard_access import TOKEN_VARIABLE
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

PLAN = WarmupPlan(max_rows=8, max_row_tokens=256, num_blocks=64)
CPU = ("--backend", "cpu", "--dtype", "float32")
WANTED = (
    request((5, 6, 7), 12),
    request((8, 9) * 20, 9),
    request((4, 3, 2), 10, seed=7),
    request((11, 12), 12, grammar=Grammar(GrammarKind.REGEX, "[a-c]{3,8} [0-9]+")),
)
"""Greedy, a longer prompt, sampled, and with a grammar."""


async def collect(stream: GenerationStream) -> list[int]:
    """All token ids of a stream."""
    return [token.id async for generation in stream for token in generation.tokens]


@asynccontextmanager
async def looping(shard: ShardClient, info: ShardInfo) -> AsyncGenerator[SchedulerLoop, None]:
    """A loop over a shard."""
    loop = SchedulerLoop(shard, info, await shard.warmup(PLAN, quiet))
    async with running_loop(loop, shard):
        yield loop


async def answers(loop: SchedulerLoop, wanted: tuple[GenerationRequest, ...] = WANTED) -> list[list[int]]:
    """What a loop makes of requests that come together."""
    return list(await asyncio.gather(*(collect(loop.submit(one)) for one in wanted)))


_expected: dict[tuple[GenerationRequest, ...], list[list[int]]] = {}


async def of_one_rank(tokenizer: Tokenizer, wanted: tuple[GenerationRequest, ...] = WANTED) -> list[list[int]]:
    """The answers of a model that is whole, in this process."""
    if wanted not in _expected:
        plugin, masks = find("cpu"), GrammarMasks.for_model(DEMO, tokenizer.eos_ids)
        session = Session(open_backend(plugin, OpenOptions(str(DEMO), "float32", masks=masks), quiet), "cpu")
        info = ShardInfo("demo", "cpu", "cpu", "float32", (1, 0), session.capabilities())
        async with looping(LocalShard(ModelServer(session, tokenizer, info, masks)), info) as loop:
            _expected[wanted] = await answers(loop, wanted)
    return _expected[wanted]


@contextmanager
def shard(*arguments: str, extra: Mapping[str, str] | None = None) -> Generator[subprocess.Popen[str], None, None]:
    """`tgi shard` by itself."""
    command = [*TGI, "shard", str(DEMO), *CPU, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(extra)) as child:
        try:
            yield child
        finally:
            child.kill()


def address_of(child: subprocess.Popen[str]) -> str:
    """Where a shard listens."""
    assert child.stdout is not None
    return child.stdout.readline().removeprefix("listening: ").strip()


async def test_rank_0_starts_the_others_and_ends_with_them(demo_tokenizer: Tokenizer) -> None:
    """`--num-shard 2`: one process is started, one address is found, and greedy, sampled and grammar-bound tokens are those of one
    rank; each rank has its share of the threads. When the other rank is killed in the middle of an answer, the answer ends with that
    reason, and rank 0 ends with status 1."""
    expected = await of_one_rank(demo_tokenizer)
    with shard("--num-shard", "2", extra={"OMP_NUM_THREADS": ""}) as child:
        address = address_of(child)
        connected = await connect(address, DEMO, demo_tokenizer, quiet)
        async with looping(connected.shard, connected.info) as loop:
            assert await answers(loop) == expected
            channel = ShardChannel(address)
            assert len((await channel.call("ServiceDiscovery", pb.ServiceDiscoveryRequest())).urls) == 1
            await channel.close()
            (follower,) = (item for item in psutil.Process(child.pid).children() if "--follow" in item.cmdline())
            stream = loop.submit(request((1, 2), 200))
            await anext(stream)
            follower.kill()
            with pytest.raises(GenerationFailed, match=r"rank 1 was killed by SIGKILL|shard"):
                await collect(stream)
        _, errors = await asyncio.to_thread(child.communicate, timeout=60)
        assert child.returncode == 1 and "rank 1 was killed by SIGKILL" in errors, errors


async def test_ranks_started_by_hand(demo_tokenizer: Tokenizer) -> None:
    """RANK, WORLD_SIZE and the like, as torchrun sets them: rank 0 listens, rank 1 follows, whichever starts first; kill -9 of rank 0
    ends rank 1."""
    expected = await of_one_rank(demo_tokenizer)
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(two_free_ports()), TOKEN_VARIABLE: "secret"}
    with ExitStack() as stack:
        second = stack.enter_context(shard(extra={**variables, "RANK": "1", "LOCAL_RANK": "1"}))
        first = stack.enter_context(shard(extra={**variables, "RANK": "0", "LOCAL_RANK": "0"}))
        connected = await connect(address_of(first), DEMO, demo_tokenizer, quiet)
        async with looping(connected.shard, connected.info) as loop:
            assert await answers(loop) == expected
            first.send_signal(signal.SIGKILL)
            assert await asyncio.to_thread(second.wait, 60) == 1


@pytest.mark.parametrize("rank", ["0", "1"])
def test_ranks_on_tcp_want_a_token(rank: str) -> None:
    """A rank that would meet others over TCP does not start without a token, on the loopback neither."""
    variables = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(two_free_ports())}
    result = run("shard", str(DEMO), "--backend", "reference", extra=variables)
    lines = result.stderr.splitlines()
    assert result.returncode == 1 and len(lines) == 1, result.stderr
    assert "a group of ranks on TCP (--master-addr 127.0.0.1) needs a token" in lines[0] and TOKEN_VARIABLE in lines[0]


def two_free_ports() -> int:
    """A port that is free, as is the next."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one, ExitStack() as stack:
            port: int = one.getsockname()[1]
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port + 1)))
            except OSError:
                continue
            return port


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num-shard", "3"), "--num-shard 3: num_attention_heads 4 is not divisible by it; use 1, 2 or 4"),
        (("--sharded", "true"), "--sharded: needs at least two devices, backend cpu found 1; set --num-shard"),
    ],
)
def test_a_refusal_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    """What cannot be split ends the start with one line, said once."""
    result = run("serve", "--hostname", "127.0.0.1", "--port", "0", "--backend", "cpu", *arguments)
    lines = [line for line in result.stderr.splitlines() if "error" in line.lower()]
    assert result.returncode == 1 and len(lines) == 1 and words in lines[0], result.stderr


def test_a_backend_of_one_process_gets_all_ranks() -> None:
    """A plugin that keeps its ranks in one process is opened once: nothing is started beside it."""
    reference = find("reference")
    assert reference.manifest is not None
    hooks = SimpleNamespace(backend_open=lambda options, progress: options.group)
    plugin = replace(reference, manifest=replace(reference.manifest, processes=Processes.ONE), hooks=hooks)
    before = set(psutil.Process().children())
    opened = open_ranks(plugin, OpenOptions(str(DEMO)), Settings(num_shard=2), quiet)
    assert opened == Group(world=2, local_world=2) and set(psutil.Process().children()) == before
