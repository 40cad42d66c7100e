"""The shard as a process of its own: it serves, it says how it ended, and it never outlives who started it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.scheduler.device import alone, quiet, request
from tests.scheduler.running import running_loop
from tests.serve.process import TGI, environment, run
from tgi_core.backend import WarmupPlan
from tgi_core.client.base import ReadyShard
from tgi_core.client.channel import CallFailed, ShardChannel
from tgi_core.client.child import ChildShard, ShardProcess, open_child_shard
from tgi_core.client.connecting import connect
from tgi_core.client.grpc import GrpcShard
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.scheduler import GenerationFailed, GenerationStream, SchedulerLoop
from tgi_core.server.grpc_address import prepare_tcp, prepare_unix
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.health import ShardState

REFERENCE = ["--backend", "reference"]


async def collect(stream: GenerationStream) -> list[int]:
    """All token ids of a stream."""
    return [token.id async for generation in stream for token in generation.tokens]


def process(opened: ReadyShard) -> ShardProcess:
    """The child."""
    assert isinstance(opened.shard, ChildShard)
    return opened.shard.process


@asynccontextmanager
async def opened(tokenizer: Tokenizer) -> AsyncGenerator[tuple[ReadyShard, SchedulerLoop], None]:
    """A child and a loop over it."""
    child = await open_child_shard(DEMO, REFERENCE, lambda _: WarmupPlan(max_row_tokens=256), quiet)
    loop = SchedulerLoop(child.shard, child.info, child.capacity)
    async with running_loop(loop, child.shard):
        yield child, loop


async def test_a_child_serves(demo_tokenizer: Tokenizer) -> None:
    """Requests are answered as in process; the socket has no name any more that could be left behind; closing ends the process."""
    async with opened(demo_tokenizer) as (child, loop):
        assert not process(child).folder.path.exists()
        asked = [request((index, 2), 12, seed=index) for index in range(5)]
        assert await asyncio.gather(*(collect(loop.submit(one)) for one in asked)) == [
            alone(demo_tokenizer, one) for one in asked
        ]
        assert await loop.healthy()
    assert not psutil.pid_exists(process(child).pid)


async def test_a_killed_child_is_noticed(demo_tokenizer: Tokenizer) -> None:
    """kill -9 in the middle of an answer: its stream ends with the signal's name, and health is gone."""
    async with opened(demo_tokenizer) as (child, loop):
        stream = loop.submit(request((1, 2), 200))
        await anext(stream)
        os.kill(process(child).pid, signal.SIGKILL)
        with pytest.raises(GenerationFailed, match="killed by SIGKILL"):
            await collect(stream)
        assert not await loop.healthy()


async def test_a_child_leaves_signals_to_its_parent(demo_tokenizer: Tokenizer) -> None:
    """A Ctrl-C or a SIGTERM that reaches the whole group does not end the shard under requests that its parent will finish."""
    async with opened(demo_tokenizer) as (child, loop):
        stream = loop.submit(request((1, 2), 60))
        await anext(stream)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process(child).pid, number)
        assert len(await collect(stream)) == 59


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--backend", "no-such"], "no-such"), (["--dtype", "float99"], "float99"), ([*REFERENCE, "--memory-fraction", "7"], "7")],
)
async def test_a_child_that_cannot_open_says_why(
    demo_tokenizer: Tokenizer, arguments: list[str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What stops the child stops its parent, with the child's own words."""
    with pytest.raises(StartupError) as caught:
        await open_child_shard(DEMO, arguments, lambda _: WarmupPlan(), quiet)
    assert reason in str(caught.value) + capfd.readouterr().err


def test_a_child_dies_with_its_parent() -> None:
    """kill -9 of the process that started a shard ends the shard."""
    code = (
        "import asyncio, pathlib, time; from tgi_core.client.child import spawn_shard; from tgi_core.model_files import DEMO\n"
        "async def main():\n"
        "    shard = await spawn_shard(DEMO, ['--backend', 'reference'], print)\n"
        "    print(shard.pid, await shard.address(), flush=True)\n"
        "    time.sleep(1e6)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment())
    assert parent.stdout is not None
    pid, address = parent.stdout.readline().split()
    child = psutil.Process(int(pid))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    shutil.rmtree(Path(address.removeprefix("unix:")).parent, ignore_errors=True)  # whoever starts next sweeps it too


@contextmanager
def shard(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str], None, None]:
    """`tgi shard` by itself, and where it listens."""
    command = [*TGI, "shard", str(DEMO), *REFERENCE, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().removeprefix("listening: ").strip()
        finally:
            child.kill()


async def test_a_shard_by_itself(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """It outlives its routers: one after the other is served, each with ids from 1; SIGTERM ends it with status 0."""
    path = tmp_path / "folder" / "shard"
    with shard("--uds-path", str(path)) as (child, address):
        assert address == f"unix:{path}"
        for _ in range(2):
            connected = await connect(address, DEMO, demo_tokenizer, quiet)
            assert isinstance(connected.shard, GrpcShard)
            assert (await connected.shard.health()).state in {ShardState.OPEN, ShardState.READY}
            capacity = await connected.shard.warmup(WarmupPlan(max_row_tokens=256), quiet)
            loop = SchedulerLoop(connected.shard, connected.info, capacity)
            task = asyncio.create_task(loop.run())
            left = loop.submit(request((5, 6), 200))
            await anext(left)
            assert await collect(loop.submit(request((1, 2), 9))) == alone(demo_tokenizer, request((1, 2), 9))
            health = await connected.shard.health()
            assert health.state is ShardState.READY and health.turns > 9 and health.last_step_age_ns is not None
            task.cancel()
            await asyncio.gather(task, collect(left), return_exceptions=True)
            await connected.shard.close()
        occupied = await asyncio.to_thread(run, "shard", str(DEMO), *REFERENCE, "--uds-path", str(path))
        assert occupied.returncode == 1 and "another shard listens there" in occupied.stderr
        child.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait, 60) == 0


def test_addresses(tmp_path: Path) -> None:
    """A socket that nobody listens on is removed; folders that others can enter, files that are no sockets, long paths and
    names of hosts are refused."""
    tmp_path.chmod(0o700)
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(stale))
        old.listen()
        with pytest.raises(StartupError, match="another shard listens there"):
            prepare_unix(stale)
    assert prepare_unix(stale) == f"unix:{stale}" and not stale.exists()
    prepare_unix(tmp_path / "new" / "shard")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir(mode=0o755)
    for path, text in (
        (tmp_path / "file", "not a socket"),
        (tmp_path / "open" / "s", "mode 0700"),
        (tmp_path / ("x" * 99), "107 bytes"),
    ):
        with pytest.raises(StartupError, match=text):
            prepare_unix(Path(path))
    assert prepare_tcp("::1", 5) == "[::1]:5" and prepare_tcp("0.0.0.0", 5) == "0.0.0.0:5"
    with pytest.raises(StartupError, match="not an IP address"):
        prepare_tcp("localhost", 5)


async def test_a_router_that_waits_for_a_model_that_is_not_found(tmp_path: Path) -> None:
    """The shard tells it why and ends: a call that waits for the model must not keep the process alive."""
    files = tmp_path / "model"
    files.mkdir()
    os.mkfifo(files / "config.json")  # so that the shard waits for this test
    command = [*TGI, "shard", str(files), *REFERENCE, "--uds-path", str(tmp_path / "own" / "shard")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as child:
        try:
            assert child.stdout is not None and child.stderr is not None
            channel = ShardChannel(child.stdout.readline().removeprefix("listening: ").strip())
            waiting = asyncio.create_task(channel.call("Info", pb.InfoRequest()))
            await channel.call("Health", pb.HealthRequest())  # served after the call above has begun
            await asyncio.to_thread((files / "config.json").write_text, "no JSON")
            with pytest.raises(CallFailed, match=r"config\.json: invalid JSON"):
                await waiting
            assert await asyncio.to_thread(child.wait, 60) == 1
            assert child.stderr.read().splitlines()[-1].startswith("tgi: error: ")
            await channel.close()
        finally:
            child.kill()


async def test_another_tokenizer_is_refused(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A router whose model has another tokenizer than the shard's does not start."""
    (tmp_path / "tokenizer.json").write_text("{}")
    with (
        shard("--uds-path", str(tmp_path / "own" / "shard")) as (_, address),
        pytest.raises(StartupError, match="not that of"),
    ):
        await connect(address, tmp_path, demo_tokenizer, quiet)


def test_a_childs_flags() -> None:
    """A child gets every setting of its parent that concerns it, whatever its environment says."""
    from tgi_core.cli.shard_flags import shard_flags

    arguments = shard_flags(Settings(dtype="float32", auto_convert=True, backend="x", model_id="y", port=1))
    assert arguments[arguments.index("--dtype") + 1] == "float32" and "--auto-convert" in arguments
    assert "--no-json-output" in arguments and not {"--model-id", "--port"} & set(arguments)
    assert arguments[arguments.index("--backend") + 1] == "x"
