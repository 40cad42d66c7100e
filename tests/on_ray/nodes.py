"""A Ray cluster on this machine, with nodes of their own that can be added and killed. It listens on the loopback interface only."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import psutil

ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as on those systems, Ray uses the loopback interface
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # the nodes share the memory of a machine that may be busy
    "LOG_LEVEL": "ERROR",  # of the shards: Ray brings their lines to the server, one for each fault injected
}
"""Of all processes of a cluster."""


class Nodes:
    """A head without CPUs, and nodes with some."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def add(self, cpus: int) -> Any:
        """Add a node."""
        return self._cluster.add_node(num_cpus=cpus)

    @property
    def all(self) -> list[Any]:
        """The nodes that have not been killed."""
        return sorted(self._cluster.worker_nodes, key=lambda node: str(node.node_id))

    @property
    def serving(self) -> list[Any]:
        """Those on which there is a shard."""
        return [node for node in self.all if any(map(_is_shard, _processes(node)))]

    def kill(self, node: Any) -> None:
        """SIGKILL to all processes of a node at once, as when its machine fails."""
        for each in _processes(node):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._reap(node)

    def lose(self, node: Any) -> None:
        """SIGKILL to a node's raylet alone: only Ray can tell that the node is lost."""
        for each in node.all_processes["raylet"]:
            os.kill(each.process.pid, signal.SIGKILL)
        self._reap(node)

    def _reap(self, node: Any) -> None:
        for processes in node.all_processes.values():
            for each in processes:
                each.process.wait()
        self._cluster.worker_nodes.remove(node)


def _processes(node: Any) -> list[psutil.Process]:
    """Those of a node, and all that they have started."""
    own = [psutil.Process(each.process.pid) for processes in node.all_processes.values() for each in processes]
    return [*own, *(child for one in own for child in one.children(recursive=True))]


def _is_shard(process: psutil.Process) -> bool:
    """Whether it is a shard that listens."""
    with suppress(psutil.Error):
        return "--listen" in process.cmdline()
    return False


@contextmanager
def nodes(*cpus: int) -> Generator[Nodes, None, None]:
    """A cluster of nodes with so many CPUs each."""
    with patch.dict(os.environ, ENVIRONMENT):
        from ray.cluster_utils import Cluster  # which reads some of it when it is imported

        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}, shutdown_at_exit=False
        )
        try:
            for count in cpus:
                cluster.add_node(num_cpus=count)
            yield Nodes(cluster)
        finally:
            for node in [*cluster.worker_nodes, cluster.head_node]:
                node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
