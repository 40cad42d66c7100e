"""`tgi serve --engine ray` and the Ray Serve application on a real Ray cluster of three nodes on this machine, which are killed and added.

`make test-ray` installs Ray and runs these; elsewhere they are skipped.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.on_ray.nodes import Nodes, nodes
from tests.serve.process import ServerProcess, environment, free_port, served
from tests.soak.kills import body
from tests.soak.ray_nodes import kill_nodes
from tests.soak.replicas import REPLICAS, disturb
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed; make test-ray installs it in an environment of its own"
    ),
    pytest.mark.timeout(600),
]

PATIENCE = 300.0
REFERENCE = ("--engine", "ray", "--backend", "reference", "--max-concurrent-requests", "512")


@pytest.fixture(scope="module")
def cluster() -> Generator[Nodes, None, None]:
    """Three nodes with two CPUs each."""
    with nodes(2, 2, 2) as these:
        yield these


def address(cluster: Nodes) -> dict[str, str]:
    """Where a server finds it."""
    return {"RAY_ADDRESS": cluster.address, "LOG_LEVEL": "ERROR"}


def phases(server: ServerProcess) -> list[str]:
    """Those of the replicas."""
    return [each["phase"] for each in httpx.get(f"{server.url}/info", timeout=60).json()["replicas"]]


def hosts() -> list[psutil.Process]:
    """Processes of shards that hosts on nodes have started."""
    found = [each for each in psutil.process_iter(["cmdline"]) if "--listen" in (each.info["cmdline"] or [])]
    return [each for each in found if "--parent" in each.info["cmdline"]]


def test_a_node_is_killed_under_load(cluster: Nodes) -> None:
    """24 streams on three replicas on nodes of their own; kill -9 of a node, and another one is added: each answer is token for token the
    undisturbed one, and the lost replica is back on another node. SIGTERM leaves nothing behind."""
    with served(*REFERENCE, "--replicas", str(REPLICAS), extra=address(cluster), patience=PATIENCE) as server:
        killing = lambda: asyncio.ensure_future(kill_nodes(cluster, 1, 5.0, random.Random(0)))  # noqa: E731
        killed = asyncio.run(disturb(server.url, 24, killing, 2.0))
        assert killed.wrong == [] and killed.answers >= 24
        told = httpx.get(f"{server.url}/info").json()["replicas"]
        assert [each["phase"] for each in told] == ["serving"] * REPLICAS and sum(each["losses"] for each in told) == 1
        assert server.stop() == 0
    assert "Traceback" not in "".join(server.lines)
    wait_until(lambda: not hosts())


def test_ray_alone_knows_that_a_node_is_lost(cluster: Nodes) -> None:
    """A node that Ray gives up, while the connection to its shard stays open: the shard is left, and another one opened elsewhere."""
    with served(*REFERENCE, "--replicas", "2", extra=address(cluster), patience=PATIENCE) as server:
        before = [httpx.post(f"{server.url}/generate", json=body(1), timeout=60).json() for _ in range(2)]
        losses = lambda: sum(each["losses"] for each in httpx.get(f"{server.url}/info").json()["replicas"])  # noqa: E731
        for node in cluster.all:
            cluster.lose(node)
            cluster.add(2)
            if losses():
                break
        wait_until(lambda: losses() > 0 and set(phases(server)) == {"serving"})
        assert httpx.post(f"{server.url}/generate", json=body(1), timeout=60).json() == before[0]
        assert server.stop() == 0


@pytest.mark.parametrize("resources", ["CPU=1", "CPU=2"])
def test_ranks(cluster: Nodes, resources: str) -> None:
    """A model split over two ranks, on one node with room for both, or else on two. The answer is that of one rank."""
    model = ("--backend", "cpu", "--dtype", "float32", "--kv-cache-tokens", "4096")
    with served(*model) as alone:
        expected = httpx.post(f"{alone.url}/generate", json=body(0), timeout=60).json()
    split = ("--engine", "ray", "--num-shard", "2", "--ray-resources", resources)
    with served(*split, *model, extra=address(cluster), patience=PATIENCE) as server:
        assert httpx.post(f"{server.url}/generate", json=body(0), timeout=120).json() == expected
        assert len(hosts()) == 1
        assert server.stop() == 0


def test_from_none_to_three(cluster: Nodes) -> None:
    """Scaled to zero, the server is ready and a request waits until there is a shard; many requests open more."""
    limits = ("--min-replicas", "0", "--max-replicas", "3", "--scale-up-wait", "0.2", "--scale-down-delay", "1")
    slow = ("--max-batch-size", "2", "--inject-faults", "slow:every=1,ms=20")
    with served(*REFERENCE, *limits, *slow, extra=address(cluster), patience=PATIENCE) as server:
        wait_until(lambda: phases(server) == ["parked"] * 3)
        wait_until(lambda: not hosts())
        assert httpx.get(f"{server.url}/health").status_code == 200

        async def ask() -> tuple[list[Any], set[int]]:
            async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
                asked = [asyncio.create_task(client.post("/generate", json=body(4 * index + 1))) for index in range(24)]
                serving = set[int]()
                while not all(task.done() for task in asked):
                    told = (await client.get("/info")).json()["replicas"]
                    serving.add(sum(each["phase"] == "serving" for each in told))
                    await asyncio.sleep(0.1)
                return [task.result().status_code for task in asked], serving

        statuses, serving = asyncio.run(ask())
        assert set(statuses) == {200} and max(serving) >= 2
        assert server.stop() == 0


def test_the_serve_application(cluster: Nodes, tmp_path: Path) -> None:
    """`serve run tgi_core.ray:app …`: the API through Ray Serve's proxy, as one answer and as a stream."""
    cluster.add(4)  # for the router, the proxy, and shards
    port = free_port()
    (tmp_path / "serve.yaml").write_text(
        f"http_options: {{host: 127.0.0.1, port: {port}}}\n"
        "applications:\n- name: tgi\n  import_path: tgi_core.ray:app\n  args: {backend: reference, replicas: '2'}\n"
    )
    command = [str(Path(sys.executable).with_name("serve")), "run", "--address", cluster.address, str(tmp_path / "serve.yaml")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(address(cluster)))
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(url))
        whole = httpx.post(f"{url}/generate", json=body(1), timeout=60).json()
        assert whole["generated_text"]
        with httpx.stream("POST", f"{url}/generate_stream", json=body(1), timeout=60) as response:
            assert sum(line.startswith("data:") for line in response.iter_lines()) == whole["details"]["generated_tokens"]
        assert len(httpx.get(f"{url}/info").json()["replicas"]) == 2
    finally:
        child.terminate()
        child.wait(120)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False
