"""Opens the shards of one replica on a cluster, each in a new place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tgi_core.backend import Progress
from tgi_core.client.base import Plan, ReadyShard, ShardClient
from tgi_core.client.child import ChildShard, ShardRunner
from tgi_core.client.connecting import ConnectedShard, connect
from tgi_core.client.warmup import warm_up
from tgi_core.errors import StartupError
from tgi_core.on_ray.base import Cluster, HostLost, Placed, RankStart
from tgi_core.on_ray.layout import rank_variables
from tgi_core.shard_access import TOKEN_VARIABLE, ShardAccess

_log = logging.getLogger(__name__)

_GOODBYE_S = 8.0
"""Seconds that a shard's processes may take to exit after a request to do so."""
_REASON_S = 60.0
"""Seconds that a shard that did not start may take to exit and say why: a busy node ends processes slowly."""
_DEATH_S = 0.5
"""Seconds that the news of an end may take after a connection is closed."""


class PlacedProcesses:
    """The processes of a shard, on the hosts of one place."""

    def __init__(self, placed: Placed) -> None:
        self._placed = placed
        self._ending = asyncio.create_task(self._watch())

    async def ended(self) -> str:
        """Wait until a process has ended, or a node is lost."""
        return await asyncio.shield(self._ending)

    async def reason(self, otherwise: str, seconds: float = _DEATH_S) -> str:
        """Return why they have ended or are about to; `otherwise` if they keep running."""
        await asyncio.wait({self._ending}, timeout=seconds)
        return self._ending.result() if self._ending.done() and not self._ending.cancelled() else otherwise

    def kill(self) -> None:
        """Kill them."""
        self._placed.release()

    async def end(self) -> None:
        """Ask them to exit, then kill them. Idempotent."""
        asked = asyncio.gather(*(host.end() for host in self._placed.hosts))
        with suppress(HostLost, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await asked
        self._ending.cancel()
        self._placed.release()

    async def _watch(self) -> str:
        each = [asyncio.ensure_future(host.ended()) for host in self._placed.hosts]
        try:
            done, _ = await asyncio.wait(each, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        except HostLost as error:
            return str(error)
        finally:
            for one in each:
                one.cancel()


class PlacedShard(ChildShard):
    """A `ShardClient` of a shard on a cluster. It leaves the shard as soon as a node is known to be lost: the connection to a machine that
    is gone may stay open for a minute."""

    def __init__(self, process: ShardRunner, shard: ShardClient) -> None:
        super().__init__(process, shard)
        self._leaving = asyncio.create_task(self._leave())

    async def abandon(self) -> None:
        """Kill the processes, and leave the shard."""
        await super().abandon()
        await self._shard.abandon()

    async def close(self) -> None:
        """Disconnect from the shard and end its processes. Idempotent."""
        self._leaving.cancel()
        await super().close()

    async def _leave(self) -> None:
        await self.process.ended()
        await self._shard.abandon()


class OnCluster:
    """Opens a shard with `ranks` ranks. `arguments` are those of `tgi shard`: the model, if it is not the bundled one, and flags. The
    router reads the model's tokenizer in `directory`."""

    def __init__(self, cluster: Cluster, ranks: int, arguments: Sequence[str], directory: Path, access: ShardAccess) -> None:
        self._cluster, self._ranks, self._arguments = cluster, ranks, list(arguments)
        self._directory, self._access = directory, access
        self._backend: list[str] = []

    async def open(self, plan: Plan, progress: Progress) -> ReadyShard:
        """Find a place, start the shard there and wait until it is warmed up. Raises StartupError."""
        progress("waiting for a node", 0, 1, "replicas")
        placed = await self._cluster.place(self._ranks)
        try:
            address, processes = await self._started(placed)
            connected = await self._connected(address, processes, progress)
            opened = await warm_up(PlacedShard(processes, connected.shard), connected.info, plan, progress)
        except HostLost as error:
            placed.release()
            raise StartupError(str(error)) from error
        except BaseException:
            placed.release()
            raise
        self._backend = ["--backend", opened.info.backend]  # a restart must not select another backend
        return opened

    async def _started(self, placed: Placed) -> tuple[str, PlacedProcesses]:
        starts = await self._starts(placed)
        first, *_ = await asyncio.gather(*(host.start(ranks) for host, ranks in zip(placed.hosts, starts, strict=True)))
        return first, PlacedProcesses(placed)

    async def _starts(self, placed: Placed) -> list[list[RankStart]]:
        """Return what each host starts. On one node, rank 0 starts the other ranks itself."""
        arguments, nodes = [*self._arguments, *self._backend], len(placed.hosts)
        token = {} if self._access.token is None else {TOKEN_VARIABLE: self._access.token}
        if nodes == 1:
            return [[([*arguments, *(["--num-shard", str(self._ranks)] if self._ranks > 1 else [])], token)]]
        address, port = await placed.hosts[0].meet()
        arguments += ["--ranked", "--master-addr", address, "--master-port", str(port)]
        meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        local = self._ranks // nodes
        variables = [rank_variables(rank, self._ranks, local) | meeting | token for rank in range(self._ranks)]
        return [[(arguments, each) for each in variables[node * local : (node + 1) * local]] for node in range(nodes)]

    async def _connected(self, address: str, processes: PlacedProcesses, progress: Progress) -> ConnectedShard:
        if not address:
            raise StartupError(await processes.reason("the shard's process does not listen", _REASON_S))
        connecting = asyncio.ensure_future(connect(address, self._directory, None, progress, self._access))
        ending = asyncio.ensure_future(processes.ended())
        try:
            await asyncio.wait({connecting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                return connecting.result()
            raise StartupError(ending.result())
        except StartupError as error:
            raise StartupError(await processes.reason(str(error), _REASON_S)) from error
        finally:
            ending.cancel()
            connecting.cancel()
