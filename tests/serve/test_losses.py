"""Shards that are killed, stopped and lost for good, as clients of a real server see it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.serve.process import TGI, ServerProcess, environment, served
from tests.soak.kills import REQUESTS, Disturbance, another_shard, ask, disturb, kill, shards
from tests.waiting import wait_until

pytestmark = pytest.mark.long

REFERENCE = ("--backend", "reference")
LONG = {"inputs": "Q", "parameters": {"max_new_tokens": 1900, "details": True}}
"""The toy model goes on to the end."""


def disturbed(server: ServerProcess, blows: int, strike: Callable[[int], None]) -> Disturbance:
    """What clients see of so many blows."""
    return asyncio.run(disturb(server.url, server.child.pid, blows, strike))


@pytest.mark.timeout(900)  # eleven starts of a real model, on a machine that may be busy
def test_ten_kills_under_load(tmp_path: Path) -> None:
    """kill -9 of the shard ten times under twelve clients, greedy and seeded, streaming and not, in float32: every answer is token for
    token the undisturbed one. Nothing is left behind: no zombie, no socket, no request, no block."""
    with served("--backend", "cpu", "--dtype", "float32", extra={"TMPDIR": str(tmp_path)}) as server:
        result = disturbed(server, 10, kill)
        assert (result.wrong, len(result.waits)) == ([], 10) and result.answers >= REQUESTS
        [left] = shards(server.child.pid)
        assert psutil.Process(left).status() != psutil.STATUS_ZOMBIE
        assert httpx.get(f"{server.url}/health").status_code == 200
        idle(server)
        assert list(tmp_path.glob("tgi-shard-*")) == []
        assert server.stop() == 0
    output = "".join(server.lines)
    assert output.count("was killed by SIGKILL") == 10 and "Traceback" not in output


def idle(server: ServerProcess) -> None:
    """Wait until nobody holds anything."""
    wanted = {"tgi_queue_size 0", "tgi_batch_current_size 0", "tgi_kv_blocks_used 0"}
    wait_until(lambda: wanted <= set(httpx.get(f"{server.url}/metrics").text.splitlines()))


@contextmanager
def toy(*arguments: str) -> Iterator[ServerProcess]:
    """A server on the toy model, which is up again soon."""
    with served(*REFERENCE, *arguments) as server:
        yield server


def stop(shard: int) -> None:
    """SIGSTOP: it keeps its connections, and answers nothing."""
    os.kill(shard, signal.SIGSTOP)


def test_three_stopped_shards() -> None:
    """A shard that hangs in the middle of its steps is found by the age of its step and replaced; answers are as if it had not."""
    with toy("--watchdog-floor", "1") as server:
        result = disturbed(server, 3, stop)
        assert (result.wrong, len(result.waits)) == ([], 3)
        assert server.stop() == 0
    assert "".join(server.lines).count("it is ended") == 3


def test_a_machine_that_slept_is_no_hang() -> None:
    """When router and shard were both stopped for longer than the watchdog's floor, nothing is wrong with the shard."""
    with toy("--watchdog-floor", "0.5") as server, httpx.stream("POST", f"{server.url}/generate_stream", json=LONG) as stream:
        [shard] = shards(server.child.pid)
        lines = stream.iter_lines()
        next(lines)
        for process in (server.child.pid, shard):
            os.kill(process, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            server.child.wait(2)  # the time that they sleep
        for process in (shard, server.child.pid):
            os.kill(process, signal.SIGCONT)
        assert '"finish_reason"' in "".join(lines)
        assert shards(server.child.pid) == [shard]


def test_an_idle_shard_is_replaced_too() -> None:
    """Nobody asks for anything, and yet the next request finds a shard."""
    with toy() as server:
        [first] = shards(server.child.pid)
        kill(first)
        asyncio.run(asyncio.wait_for(another_shard(server.child.pid, first), 60))
        wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 200)
        assert server.stop() == 0


def test_fail_on_loss() -> None:
    """With --on-shard-loss fail every request that is there gets a clear error, and the server goes on."""

    async def main(server: ServerProcess) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            begun: asyncio.Queue[None] = asyncio.Queue()

            async def stream() -> str:
                async with client.stream("POST", "/generate_stream", json=LONG) as response:
                    async for line in response.aiter_lines():
                        begun.put_nowait(None)
                        if line:
                            last = line
                return last

            streams = [asyncio.create_task(stream()) for _ in range(8)]
            await begun.get()
            kill(shards(server.child.pid)[0])
            for last in await asyncio.gather(*streams):
                error = json.loads(last.removeprefix("data:"))
                assert error["error_type"] == "generation" and "killed by SIGKILL" in error["error"]
            while (await client.get("/health")).status_code != 200:
                pass
            assert (await ask(client, 1, lambda: None))[0]

    with toy("--on-shard-loss", "fail", "--max-batch-size", "4") as server:
        asyncio.run(main(server))
        assert server.stop() == 0


def test_a_spent_budget_ends_the_server() -> None:
    """No restart is left: the request gets the reason, the server ends with status 1 and one line that says why."""
    with toy("--shard-restarts", "0") as server:
        with httpx.stream("POST", f"{server.url}/generate_stream", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            kill(shards(server.child.pid)[0])
            last = [line for line in lines if line][-1]
        assert "killed by SIGKILL" in json.loads(last.removeprefix("data:"))["error"]
        assert server.child.wait(60) == 1
    assert server.lines[-1].startswith("tgi: error: the shard is lost: the shard's process was killed by SIGKILL; 0 restarts")
    assert "Traceback" not in "".join(server.lines)


def long_stream(server: ServerProcess) -> Any:
    """A response that will not end by itself for a while."""
    return httpx.stream("POST", f"{server.url}/generate_stream", json=LONG, timeout=60)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_second_sigterm_ends_at_once(streaming: bool) -> None:
    """The first waits for the running stream, or for the shard to close, and the shard does not answer; the second waits for nobody."""
    with toy() as server, long_stream(server) as response:
        lines = response.iter_lines()
        next(lines)
        [shard] = shards(server.child.pid)
        stop(shard)
        if not streaming:
            response.close()
        for _ in range(2):
            with pytest.raises(subprocess.TimeoutExpired):
                server.child.wait(0.5)  # the first signal is seen as one, and the second as another
            server.child.send_signal(signal.SIGTERM)
        server.child.wait(30)
        assert not psutil.pid_exists(shard)


@pytest.mark.parametrize("program", ["tgi", "text-generation-launcher"])
def test_no_orphans(program: str, tmp_path: Path) -> None:
    """kill -9 of the server or the launcher takes its shard along, and leaves no socket."""
    command = [str(Path(TGI[0]).with_name(program)), *(["serve"] if program == "tgi" else ["--model-id", "tgi_core/demo"])]
    extra = {"TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [*command, "--hostname", "127.0.0.1", "--port", "0", *REFERENCE],
        stderr=subprocess.PIPE, text=True, env=environment(extra), cwd=Path(__file__).parents[2],
    )  # fmt: skip
    server = ServerProcess(child)
    try:
        server.wait_ready(60)
        [shard] = [psutil.Process(pid) for pid in shards(child.pid)]
        child.kill()
        child.wait()
        _, alive = psutil.wait_procs([shard], timeout=60)
        assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
        assert list(tmp_path.iterdir()) == []
    finally:
        server.close()
