"""Ray's part: a placement group for each replica, and an actor on each of its nodes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tgi_core.errors import StartupError
from tgi_core.on_ray.base import HostLost, RankStart
from tgi_core.on_ray.layout import USUAL, Resources, check_accelerators, fits, spreads, times
from tgi_core.on_ray.shard_host import ShardHost

_log = logging.getLogger(__name__)

_TRY_S = 3.0
"""Seconds for one placement, as long as there are others to try."""
_ROUND_S = 30.0
"""Seconds for the last one, after which the nodes are looked at again."""
_SUSPECT_S = 30.0
"""Seconds after which a node that a replica has left is known to be alive."""
_NODE_LABEL = "ray.io/node-id"
_NAMED = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Options of an actor for the resources that have one of their own."""


def connect_to_ray(log_to_driver: bool = True) -> None:
    """Connect to the cluster at RAY_ADDRESS or on this machine, or start one on this machine. Blocks. Raises StartupError."""
    try:
        import ray
    except ImportError as error:
        raise StartupError(f"--engine ray: {error.name} is not installed; pip install 'tgi-core[ray]'") from error
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(log_to_driver=log_to_driver, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        address = os.environ.get("RAY_ADDRESS")
        where = f"the cluster at RAY_ADDRESS={address}" if address else "a cluster on this machine"
        raise StartupError(f"--engine ray: cannot connect to {where}: {' '.join(str(error).split())[:200]}") from error


def _keep_signal_handlers() -> None:
    """Set this process's signal handlers again: Ray replaces the one of SIGTERM by one that prints a stack trace."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


class NodeShardHost(ShardHost):
    """A `ShardHost` in an actor, at the address by which the cluster knows its node."""

    def __init__(self) -> None:
        import ray

        super().__init__(ray.util.get_node_ip_address())


class RayHost:
    """A `Host` that is an actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    async def meet(self) -> tuple[str, int]:
        """Return the node's address and a free port."""
        address, port = await self._call("meet")
        return address, port

    async def start(self, ranks: list[RankStart]) -> str:
        """Start processes; return the address of rank 0."""
        return str(await self._call("start", ranks))

    async def ended(self) -> str:
        """Wait until one of the processes, the actor or its node is lost."""
        return str(await self._call("ended"))

    async def end(self) -> None:
        """Ask the processes to exit, then kill them."""
        await self._call("end")

    async def _call(self, method: str, *arguments: Any) -> Any:
        from ray.exceptions import RayError

        try:
            return await asyncio.wrap_future(getattr(self.actor, method).remote(*arguments).future())
        except RayError as error:
            raise HostLost(f"the shard's node or actor is lost: {' '.join(str(error).split())[:300]}") from error


class RayPlace:
    """A placement group with its actors."""

    def __init__(self, group: Any, hosts: Sequence[RayHost], free: Callable[[], None]) -> None:
        self.hosts = hosts
        self._group, self._free = group, free
        self._released = False

    def release(self) -> None:
        """Kill the actors and remove the placement group, in a thread. Idempotent."""
        if self._released:
            return
        self._released = True
        self._free()
        asyncio.get_running_loop().run_in_executor(None, self._give_back)

    def _give_back(self) -> None:
        import ray

        for host in self.hosts:
            ray.kill(host.actor)
        ray.util.remove_placement_group(self._group)


class RayCluster:
    """The cluster at RAY_ADDRESS, on this machine, or a new one on this machine. A rank takes `of_a_rank` of a node's resources,
    which must be said where there are accelerators. Replicas are kept on different nodes as long as there is room."""

    def __init__(self, of_a_rank: Resources | None, log_to_driver: bool = True) -> None:
        self._of_a_rank = dict(USUAL if of_a_rank is None else of_a_rank)
        self._unsaid = of_a_rank is None
        self._log_to_driver = log_to_driver
        self._used: Counter[str] = Counter()
        """Number of replicas by the id of their node."""
        self._left: dict[str, float] = {}
        """When a replica last left a node, by its id: if the node was lost, it takes Ray a while to know."""
        self._placing = asyncio.Lock()

    async def place(self, ranks: int) -> RayPlace:
        """Wait for room: on one node, or else divided evenly over as few as possible. Raises StartupError."""
        async with self._placing:
            await asyncio.to_thread(connect_to_ray, self._log_to_driver)
            _keep_signal_handlers()
        warned = False
        while True:
            nodes = await asyncio.to_thread(_nodes)
            if self._unsaid:
                check_accelerators(list(nodes.values()))
            options = spreads(ranks, self._of_a_rank, list(nodes.values()))
            for last, count in zip([False] * (len(options) - 1) + [True], options, strict=True):
                each = times(self._of_a_rank, ranks // count)
                if (place := await self._tried(count, each, nodes, last and warned)) is not None:
                    return place
            if not warned:
                _log.warning("%s", _wanting(ranks, self._of_a_rank, nodes))
            warned = True

    async def _tried(self, count: int, each: Resources, nodes: dict[str, Resources], patient: bool) -> RayPlace | None:
        """Place bundles of `each` on `count` nodes; None if there is no room in time."""
        async with self._placing:  # one at a time, so that each sees where the others are
            target = self._emptiest(each, nodes) if count == 1 else None
            group = None if target is None else await _group(count, each, target, _TRY_S)
            if group is None and not patient:
                group = await _group(count, each, None, _TRY_S)
            if group is not None:
                return await self._hosts(group, each)
        group = await _group(count, each, None, _ROUND_S) if patient else None
        return None if group is None else await self._hosts(group, each)

    def _emptiest(self, each: Resources, nodes: dict[str, Resources]) -> str | None:
        """Return the node with the fewest replicas of those that are large enough; one that was just left only if there is no other."""
        large, recent = [node for node, has in nodes.items() if fits(each, has)], time.monotonic() - _SUSPECT_S
        return min(large, key=lambda node: (self._left.get(node, recent) > recent, self._used[node]), default=None)

    def _free(self, nodes: Sequence[str]) -> None:
        """A replica has left these nodes."""
        self._used.subtract(nodes)
        self._left |= dict.fromkeys(nodes, time.monotonic())

    async def _hosts(self, group: Any, each: Resources) -> RayPlace:
        """Start an actor in each bundle of a placement group."""
        import ray
        from ray.util.placement_group import placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        table = await asyncio.to_thread(placement_group_table, group)
        nodes = list(table["bundles_to_node_id"].values())
        options = {_NAMED[name]: amount for name, amount in each.items() if name in _NAMED}
        others = {name: amount for name, amount in each.items() if name not in _NAMED}
        remote = ray.remote(NodeShardHost)
        hosts = [
            RayHost(
                remote.options(
                    **{"num_cpus": 0, **options},
                    resources=others,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
                ).remote()
            )
            for index in range(group.bundle_count)
        ]
        self._used.update(nodes)
        return RayPlace(group, hosts, lambda: self._free(nodes))


async def _group(count: int, each: Resources, node: str | None, seconds: float) -> Any:
    """Create a placement group of `count` bundles on different nodes, or on one, which may be given; None if it is not placed in time."""
    from ray.util.placement_group import placement_group, remove_placement_group

    strategy = "STRICT_PACK" if count == 1 else "STRICT_SPREAD"
    selector = None if node is None else [{_NODE_LABEL: node}]
    group = placement_group([dict(each)] * count, strategy=strategy, bundle_label_selector=selector)
    try:
        if await asyncio.to_thread(group.wait, seconds):
            return group
    except BaseException:
        remove_placement_group(group)
        raise
    remove_placement_group(group)
    return None


def _nodes() -> dict[str, Resources]:
    """Return what each node that is alive has in total, by its id."""
    import ray

    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def _wanting(ranks: int, of_a_rank: Resources, nodes: dict[str, Resources]) -> str:
    """Say what is missing."""
    wanted = _shown(of_a_rank)
    most = {name: max((node.get(name, 0.0) for node in nodes.values()), default=0.0) for name in of_a_rank}
    return (
        f"waiting for room on the Ray cluster: a replica needs {ranks} × {wanted}, and its largest node has {_shown(most)} in all; "
        "add nodes, or change --replicas, --num-shard or --ray-resources"
    )


def _shown(resources: Resources) -> str:
    return ",".join(f"{name}={amount:g}" for name, amount in resources.items())
