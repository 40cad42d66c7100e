"""Runs the processes of a shard on the node where it is: an actor of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack

from tgi_core.client.child import ShardProcess, run_shard
from tgi_core.errors import StartupError
from tgi_core.on_ray.base import RankStart

_OWN_VARIABLES = frozenset(
    {"NUM_SHARD", "SHARDED", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)
"""Environment variables of the node that must not reach a shard, whose arguments contain all settings."""


class ShardHost:
    """A `Host` at the address `ip`. The processes end with it, however it ends."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._processes: list[ShardProcess] = []

    async def meet(self) -> tuple[str, int]:
        """Return the node's address, and a port that is free there, as is the next one."""
        return self._ip, _free_ports(self._ip)

    async def start(self, ranks: list[RankStart]) -> str:
        """Start processes. If the first is rank 0, return its address, or "" if it does not listen."""
        inherited = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
        for arguments, variables in ranks:
            first = variables.get("RANK", "0") == "0"
            listening = ["--listen", f"[{self._ip}]:0" if ":" in self._ip else f"{self._ip}:0"] if first else []
            process = await run_shard([*arguments, *listening], inherited | variables)
            self._processes.append(ShardProcess(process, _untold))
        if ranks[0][1].get("RANK", "0") != "0":
            return ""
        try:
            return await self._processes[0].address()
        except StartupError:
            return ""  # `ended` says why

    async def ended(self) -> str:
        """Wait until one of the processes has ended. Return how it ended."""
        ending = [asyncio.ensure_future(process.ended()) for process in self._processes]
        try:
            done, _ = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            return next(each.result() for each in ending if each in done)
        finally:
            for each in ending:
                each.cancel()

    async def end(self) -> None:
        """Ask the processes to exit, then kill them. Idempotent."""
        await asyncio.gather(*(process.end() for process in self._processes))


def _untold(what: str, done: int, total: int, unit: str) -> None:
    """Ignore progress, which the router reads from the shard's health."""


def _free_ports(ip: str) -> int:
    """Return a port that is free, as is the next one."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    while True:
        with socket.create_server((ip, 0), family=family) as one, ExitStack() as stack:
            port: int = one.getsockname()[1]
            try:
                stack.enter_context(socket.create_server((ip, port + 1), family=family))
            except (OSError, OverflowError):
                continue
            return port
