"""Shards on a cluster, with the real opener, hosts, processes and gRPC; only Ray's placement is replaced, by a list on this machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks.test_processes import answers, of_one_rank
from tests.scheduler.device import alone, quiet, request
from tests.scheduler.running import running_loop
from tests.serve.process import run
from tgi_core.backend import WarmupPlan
from tgi_core.cli.ray_engine import access_on_ray, shard_arguments
from tgi_core.client.base import ReadyShard
from tgi_core.client.supervised import RestartRules, SupervisedShard
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO
from tgi_core.on_ray.base import HostLost, RankStart
from tgi_core.on_ray.layout import check_accelerators, fits, parse_resources, rank_variables, spreads, times
from tgi_core.on_ray.opener import OnCluster
from tgi_core.on_ray.shard_host import ShardHost
from tgi_core.scheduler import SchedulerLoop
from tgi_core.shard_access import ShardAccess
from tgi_core.tokenizer import Tokenizer

PLAN = WarmupPlan(max_rows=8, max_row_tokens=256, num_blocks=64)


class LocalHost(ShardHost):
    """A host on this machine, of which Ray can say that it is lost."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1")
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.started: list[RankStart] = []

    async def start(self, ranks: list[RankStart]) -> str:
        """Remember what is started."""
        self.started = ranks
        return await super().start(ranks)

    async def ended(self) -> str:
        """Wait until a process ends, or it is lost."""
        ending = asyncio.ensure_future(super().ended())
        await asyncio.wait({ending, self.lost}, return_when=asyncio.FIRST_COMPLETED)
        return await (self.lost if self.lost.done() else ending)

    @property
    def pids(self) -> list[int]:
        """Those of its processes."""
        return [process.pid for process in self._processes]


class LocalPlace:
    """Hosts of one replica."""

    def __init__(self, count: int) -> None:
        self.hosts = [LocalHost() for _ in range(count)]
        self.released = False

    def release(self) -> None:
        """Kill all processes, as Ray does with an actor's."""
        self.released = True
        for process in (process for host in self.hosts for process in host._processes):
            process.kill()


class LocalCluster:
    """Has room for everything, on so many nodes for each replica."""

    def __init__(self, nodes: int = 1) -> None:
        self.nodes = nodes
        self.places: list[LocalPlace] = []

    async def place(self, ranks: int) -> LocalPlace:
        """Room, at once."""
        self.places.append(LocalPlace(self.nodes))
        return self.places[-1]

    async def close(self) -> None:
        """Reap all processes."""
        for place in self.places:
            await asyncio.gather(*(host.end() for host in place.hosts))


@asynccontextmanager
async def serving(cluster: LocalCluster, ranks: int, *flags: str) -> AsyncGenerator[SchedulerLoop, None]:
    """A loop on a supervised shard of the bundled model."""
    opener = OnCluster(cluster, ranks, [str(DEMO), *flags], DEMO, ShardAccess("a secret"))

    async def reopen() -> ReadyShard:
        return await opener.open(lambda capabilities: PLAN, quiet)

    opened = await reopen()
    shard = SupervisedShard(opened, reopen, RestartRules())
    loop = SchedulerLoop(shard, opened.info, opened.capacity, supervisor=shard)
    try:
        async with running_loop(loop, shard):
            yield loop
    finally:
        await cluster.close()


async def test_a_shard_moves_to_another_place(demo_tokenizer: Tokenizer) -> None:
    """Its process is killed, then its node is lost while the connection stays open: each time the answer goes on in a new place, token for
    token; the places are given back, and closing ends the last process."""
    cluster, whole = LocalCluster(), request((1, 2), 150, seed=3)
    async with serving(cluster, 1, "--backend", "reference") as loop:
        stream = loop.submit(whole)
        made = [token.id for token in (await anext(stream)).tokens]
        (pid,) = cluster.places[0].hosts[0].pids
        psutil.Process(pid).kill()
        while len(cluster.places) < 2 or not loop.lifecycle.ready:
            await asyncio.sleep(0.01)
        cluster.places[1].hosts[0].lost.set_exception(HostLost("the node is lost"))
        made += [token.id async for generation in stream for token in generation.tokens]
        assert made == alone(demo_tokenizer, whole)
        assert [place.released for place in cluster.places[:2]] == [True, True]
    assert cluster.places[-1].released and not any(
        psutil.pid_exists(pid) for place in cluster.places for host in place.hosts for pid in host.pids
    )


async def test_ranks_on_two_nodes(demo_tokenizer: Tokenizer) -> None:
    """Two ranks on nodes of their own meet over TCP with the router's token, and answer as one. When one ends, both get a new place."""
    expected = await of_one_rank(demo_tokenizer)
    cluster = LocalCluster(2)
    async with serving(cluster, 2, "--backend", "cpu", "--dtype", "float32") as loop:
        assert await answers(loop) == expected
        variables = [host.started[0][1] for host in cluster.places[0].hosts]
        assert [(each["RANK"], each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"]) for each in variables] == [
            ("0", "0", "1"),
            ("1", "0", "1"),
        ]
        (pid,) = cluster.places[0].hosts[1].pids
        psutil.Process(pid).kill()
        while len(cluster.places) < 2 or not all(host.pids for host in cluster.places[1].hosts):
            await asyncio.sleep(0.01)
        assert cluster.places[0].released


async def test_a_shard_that_does_not_start_says_why() -> None:
    """A model that the node does not have: the shard's own error, and the place is given back."""
    cluster = LocalCluster()
    missing = OnCluster(cluster, 1, ["/no/such/model", "--backend", "reference"], DEMO, ShardAccess("a secret"))
    with pytest.raises(StartupError, match="/no/such/model"):
        await missing.open(lambda capabilities: PLAN, quiet)
    assert cluster.places[0].released
    await cluster.close()


def test_resources_of_a_rank() -> None:
    """Amounts by name; anything else is refused with an example."""
    assert parse_resources("GPU=1, CPU=0.5") == {"GPU": 1.0, "CPU": 0.5}
    for wrong in ("GPU", "GPU=", "=1", "GPU=0", "GPU=-1", "CPU=nan", "CPU=inf", ""):
        with pytest.raises(StartupError, match="must be NAME=AMOUNT"):
            parse_resources(wrong)


def test_accelerators_must_be_asked_for() -> None:
    """On a cluster with some, the default of a rank would leave them idle."""
    check_accelerators([{"CPU": 4.0, "node:10.0.0.1": 1.0}])
    with pytest.raises(StartupError, match=r"has accelerators \(H100\); say what each rank takes, such as --ray-resources GPU=1"):
        check_accelerators([{"CPU": 4.0}, {"CPU": 4.0, "GPU": 8.0, "accelerator_type:H100": 1.0}])


@given(st.integers(1, 16), st.integers(1, 4), st.lists(st.integers(0, 16), max_size=8))
def test_as_few_nodes_as_possible(ranks: int, each: int, nodes: list[int]) -> None:
    """Ranks are divided evenly; a number of nodes is tried only if so many are large enough, the smallest first."""
    of_a_rank = {"GPU": float(each)}
    found = spreads(ranks, of_a_rank, [{"GPU": float(size)} for size in nodes])
    assert found == sorted(found) and all(ranks % count == 0 for count in found)
    for count in (count for count in range(1, ranks + 1) if ranks % count == 0):
        enough = sum(fits(times(of_a_rank, ranks // count), {"GPU": float(size)}) for size in nodes) >= count
        assert (count in found) == enough or found == [1]


def test_torchruns_variables() -> None:
    """Four ranks on two nodes."""
    made = [rank_variables(rank, 4, 2) for rank in range(4)]
    assert [each["LOCAL_RANK"] for each in made] == ["0", "1", "0", "1"]
    assert {(each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"]) for each in made} == {("4", "2")}


def test_what_a_node_is_told(tmp_path: Path) -> None:
    """A Hub id as it is, a local path in full, and no flag of the router's own machine; the token is not in the command line."""
    secret = tmp_path / "token"
    secret.write_text("a secret")
    settings = Settings(model_id="org/model", num_shard=4, shard_token_file=str(secret), dtype="float32")
    arguments = shard_arguments(settings)
    assert arguments[0] == "org/model" and "float32" in arguments
    assert not {"--num-shard", "--shard-token-file", "a secret"} & set(arguments)
    assert shard_arguments(Settings(model_id=str(DEMO)))[0] == str(DEMO)
    assert access_on_ray(settings, {}).token == "a secret"
    tokens = {access_on_ray(Settings(), {}).token for _ in range(2)}
    assert len(tokens) == 2 and all(token and len(token) > 32 for token in tokens)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ray-resources", "CPU=1"), "--ray-resources: has no effect without --engine ray"),
        (("--engine", "ray", "--in-process"), "ray"),
    ],
)
def test_a_refusal_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    """Settings that contradict each other, before anything is started."""
    result = run("serve", "--hostname", "127.0.0.1", "--port", "0", *arguments)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1 and words in result.stderr, result.stderr


def test_without_ray_it_says_how_to_install_it() -> None:
    """`--engine ray` on a machine without the package: one line with the command."""
    code = "import sys; sys.modules['ray'] = None; from tgi_core.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--engine", "ray"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.stderr
    assert "--engine ray: the package ray is not installed; pip install 'tgi-core[ray]'" in result.stderr
