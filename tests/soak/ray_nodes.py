"""Three replicas on a Ray cluster under load, a node of which is killed from time to time, and another one added.

    python -m tests.soak.ray_nodes [--kills N] [--every SECONDS] [--streams N]

Needs Ray. Ends with 0 under the conditions of `tests.soak.replicas`. A kill is SIGKILL to all
processes of a node at once. There is room for more replicas, so that a lost one comes back before there is another node.
"""

from __future__ import annotations

import asyncio
import random
import sys

from tests.on_ray.nodes import Nodes, nodes
from tests.serve.process import served
from tests.soak.replicas import REPLICAS, command, disturb


async def kill_nodes(cluster: Nodes, kills: int, every_s: float, chance: random.Random) -> None:
    """Kill a node with a replica so many times, at a fixed pace, and add one after each."""
    for _ in range(kills):
        await asyncio.gather(asyncio.sleep(every_s), asyncio.to_thread(_exchange, cluster, chance))


def _exchange(cluster: Nodes, chance: random.Random) -> None:
    cluster.kill(chance.choice(cluster.serving))
    cluster.add(2)


def trial(kills: int, every_s: float, streams: int, step_ms: int = 80, calm_s: float = 20.0) -> list[str]:
    """Kill nodes; what went wrong."""
    flags = ("--engine", "ray", "--replicas", str(REPLICAS), "--backend", "reference", "--max-concurrent-requests", "512")
    device = ("--max-batch-size", "32", "--inject-faults", f"slow:every=1,ms={step_ms}")
    with nodes(2, 2, 2) as cluster, served(*flags, *device, extra={"RAY_ADDRESS": cluster.address}) as server:
        chance = random.Random(0)
        killed = asyncio.run(
            disturb(server.url, streams, lambda: asyncio.ensure_future(kill_nodes(cluster, kills, every_s, chance)), calm_s)
        )
        print(f"{kills} nodes killed, one every {every_s:.0f} s, {streams} streams: {killed}")
        ended = server.stop()
    return killed.complaints() + ([] if ended == 0 else [f"exit status {ended}"])


if __name__ == "__main__":
    sys.exit(command(__doc__, trial, 3, 20.0))
