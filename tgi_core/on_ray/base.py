"""The interface between the opener of shards and a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

RankStart = tuple[list[str], dict[str, str]]
"""Arguments of `tgi shard` and additional environment variables, of the process of one rank, or of all ranks on one node."""


class HostLost(Exception):
    """A node or the host on it is gone. The message says why."""


class Host(Protocol):
    """Runs processes of a shard on one node. All methods raise HostLost."""

    async def meet(self) -> tuple[str, int]:
        """Return the node's address, and a port that is free there, as is the next one."""

    async def start(self, ranks: list[RankStart]) -> str:
        """Start processes. If the first is rank 0, return the address on which it listens, or "" if it does not."""

    async def ended(self) -> str:
        """Wait until one of the processes has ended. Return how it ended."""

    async def end(self) -> None:
        """Ask the processes to exit, then kill them. Idempotent."""


class Placed(Protocol):
    """Room for one replica: a host on each of its nodes."""

    @property
    def hosts(self) -> Sequence[Host]:
        """The hosts, each for the same number of ranks."""

    def release(self) -> None:
        """Kill what runs there, and give the room back. Does not wait. Idempotent."""


class Cluster(Protocol):
    """Nodes with room for replicas."""

    async def place(self, ranks: int) -> Placed:
        """Wait until there is room for a replica of so many ranks, on as few nodes as possible. Raises StartupError."""
