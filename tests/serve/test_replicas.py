"""Several shards behind one router, as their clients and their operator see them."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.process import TGI, environment, run, served, started
from tests.serve.test_router import LOCAL, shard, tgi_shard
from tests.soak.kills import ask, body, shards
from tests.soak.replicas import REPLICAS, disturb, kill_one_after_another, replace_all, three
from tests.waiting import wait_until
from tgi_core.model_files import DEMO

pytestmark = pytest.mark.long

BODY: dict[str, Any] = {
    "inputs": "What is 7 plus 5?",
    "parameters": {"max_new_tokens": 300, "seed": 1, "do_sample": True, "details": True},
}


@pytest.mark.timeout(300)
def test_kills_and_a_rolling_replacement_under_load() -> None:
    """Four kills of one shard of three, then all of them replaced on a signal, under 24 streams: each answer is token for token the
    undisturbed one. `/info` and the metrics tell what each replica went through, and nothing is left."""
    with three(rows=16, step_ms=5) as server:
        pid = server.child.pid
        killing = lambda: asyncio.ensure_future(kill_one_after_another(server.url, pid, 4, 1.0, random.Random(0)))  # noqa: E731
        killed = asyncio.run(disturb(server.url, 24, killing, 0.5))
        replaced = asyncio.run(disturb(server.url, 24, lambda: asyncio.ensure_future(replace_all(server.url, pid)), 0.5))
        assert (killed.wrong, replaced.wrong) == ([], []) and min(killed.answers, replaced.answers) >= 24
        told = httpx.get(f"{server.url}/info").json()["replicas"]
        assert [each["phase"] for each in told] == ["serving"] * REPLICAS == [state["phase"] for state in told]
        assert sum(each["losses"] for each in told) == 4 + REPLICAS and sum(each["moved_requests"] for each in told) > 0
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        for number, each in enumerate(told):
            assert f'tgi_replica_up{{replica="{number}"}} 1' in lines
            assert f'tgi_replica_losses{{replica="{number}"}} {each["losses"]}' in lines
        idle = {"tgi_queue_size 0", "tgi_batch_current_size 0", "tgi_kv_blocks_used 0"}
        wait_until(lambda: idle <= set(httpx.get(f"{server.url}/metrics").text.splitlines()))
        assert len(shards(pid)) == REPLICAS and server.stop() == 0
    assert "Traceback" not in "".join(server.lines)


def test_one_server_says_nothing_of_replicas() -> None:
    """Without replicas, `/info` and the metrics are as ever."""
    with served("--backend", "reference", "--in-process") as server:
        assert "replicas" not in httpx.get(f"{server.url}/info").json()
        assert "tgi_replica" not in httpx.get(f"{server.url}/metrics").text


def test_replicas_in_this_process() -> None:
    """`--in-process` embeds all of them: they share the requests."""
    with served("--backend", "reference", "--in-process", "--replicas", "2") as server:
        answers = [httpx.post(f"{server.url}/generate", json=BODY, timeout=60).json() for _ in range(2)]
        assert answers[0] == answers[1]
        assert len(httpx.get(f"{server.url}/info").json()["replicas"]) == 2
        assert server.stop() == 0


@asynccontextmanager
async def streaming(url: str, numbers: range) -> AsyncIterator[asyncio.Future[Any]]:
    """Answers to requests that run while the block does."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        seen = asyncio.Event()
        answers = asyncio.gather(*(ask(client, number, seen.set) for number in numbers))
        await seen.wait()
        yield answers
        await answers


def test_shards_of_their_own_are_upgraded_in_turn(tmp_path: Path) -> None:
    """Three shards on sockets behind one router: each gets SIGTERM and another takes its place, under requests. These get the tokens of a
    server that nobody touches."""
    sockets = [tmp_path / f"{number}" / "shard" for number in range(3)]
    command = [*TGI, "router", str(DEMO), *LOCAL]
    numbers = range(1, 24)
    with ExitStack() as stack:
        children = [stack.enter_context(shard(*tgi_shard("--uds-path", str(path))))[0] for path in sockets]
        for path in sockets:
            command += ["--shard", str(path)]
        server = stack.enter_context(started(command))

        async def upgrade() -> tuple[Any, Any]:
            async with streaming(server.url, numbers) as undisturbed:
                pass
            async with streaming(server.url, numbers) as answers:
                for number, path in enumerate(sockets):
                    children[number].send_signal(signal.SIGTERM)
                    assert await asyncio.to_thread(children[number].wait, 60) == 0
                    children[number] = stack.enter_context(shard(*tgi_shard("--uds-path", str(path))))[0]
                    await serving(server.url)
            return undisturbed.result(), answers.result()

        before, during = asyncio.run(upgrade())
        assert before == during
        assert sum(each["losses"] for each in httpx.get(f"{server.url}/info").json()["replicas"]) == 3
        assert server.stop() == 0


async def serving(url: str) -> None:
    """Wait until all replicas serve."""
    async with httpx.AsyncClient(base_url=url) as client:
        while {each["phase"] for each in (await client.get("/info")).json()["replicas"]} != {"serving"}:
            await asyncio.sleep(0.02)


def test_shards_that_cannot_stand_in_for_each_other(tmp_path: Path) -> None:
    """The same shard twice, and shards of another dtype: one line each that says what to do."""
    twice = run("router", str(DEMO), *LOCAL, "--shard", "127.0.0.1:9", "--shard", "127.0.0.1:9")
    assert twice.returncode == 1 and "--shard 127.0.0.1:9: is given more than once" in twice.stderr
    paths = [tmp_path / "a" / "shard", tmp_path / "b" / "shard"]
    with shard(*tgi_shard("--uds-path", str(paths[0]))), shard(*tgi_shard("--uds-path", str(paths[1]), "--dtype", "bfloat16")):
        flags = [word for path in paths for word in ("--shard", str(path))]
        differing = subprocess.run(
            [*TGI, "router", str(DEMO), *LOCAL, *flags],
            capture_output=True, text=True, env=environment(), check=False, timeout=60,
        )  # fmt: skip
        assert differing.returncode == 1
        assert "replica 1 has another dtype than replica 0" in differing.stderr.splitlines()[-1]


def test_a_cpu_model_in_two_replicas() -> None:
    """The demo model twice: each replica takes half of the memory and of the cores, and an answer is the same on either."""
    with served("--backend", "cpu", "--dtype", "float32", "--replicas", "2") as server:

        async def all_at_once() -> list[Any]:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                return await asyncio.gather(*(client.post("/generate", json=body(7)) for _ in range(6)))

        answers = [json.dumps(each.json()) for each in asyncio.run(all_at_once())]
        assert len(set(answers)) == 1
        told = httpx.get(f"{server.url}/info").json()["replicas"]
        assert sorted(each["placed_requests"] > 0 for each in told) == [True, True]
        assert server.stop() == 0
