"""A shard in a child process, whose lifetime is tied to that of this process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tgi_core.backend import Capacity, DeviceLost, Progress, WarmupPlan
from tgi_core.client.base import Plan, ReadyShard, ShardClient
from tgi_core.client.connecting import ConnectedShard, connect
from tgi_core.client.grammars import Release
from tgi_core.client.warmup import warm_up
from tgi_core.errors import StartupError
from tgi_core.grammar import Cost, Grammar
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.run_folder import RunFolder, sweep
from tgi_core.telemetry.logs import pass_on
from tgi_core.wire.types import ShardInfo, Turn, TurnResult
from tgi_core.workers.command import python

LISTENING = "listening: "
PROGRESS = "progress: "
"""Prefixes of a shard's lines on standard output; the second is followed by a JSON list of `tgi_core.backend.Progress`'s
arguments."""
_ERROR = b"tgi: error: "
_GOODBYE_S = 10.0
"""Seconds that a shard may take to exit after a request to do so."""
_DEATH_S = 1.0
"""Seconds that its exit status may take after its socket is closed."""


class ShardProcess:
    """`tgi shard` as a child process. Its standard error is forwarded line by line. It ends when its standard input is closed. On
    its standard output it reports its address and its progress."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        show: Progress,
        folder: RunFolder | None = None,
        steps: socket.socket | None = None,
    ) -> None:
        self._process = process
        self.steps = steps
        """This process's end of the socket pair for turns, if there is one; the client takes ownership."""
        self.folder = folder
        """Folder of the shard's socket; None if it listens on TCP."""
        self._error: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._hearing = asyncio.create_task(self._hear(show))
        self._forwarding = asyncio.create_task(self._forward())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def address(self) -> str:
        """Wait for the address on which the shard listens. Raises StartupError if it exits first."""
        address = await self._address
        if not address:
            raise StartupError(await self.reason("the shard's process does not listen", _GOODBYE_S))
        return address

    async def ended(self) -> str:
        """Wait until the process has ended. Return how it ended."""
        await self._process.wait()
        return await self.reason("")

    async def reason(self, otherwise: str, seconds: float = _DEATH_S) -> str:
        """Return why the process has ended or is about to; `otherwise` if it keeps running."""
        waiting = asyncio.ensure_future(self._process.wait())
        either: set[asyncio.Future[Any]] = {waiting, self._error}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():  # a child of the shard may hold the pipe open
            await asyncio.wait({self._forwarding}, timeout=_DEATH_S)
        waiting.cancel()
        if self._error.done():
            return self._error.result()
        status = self._process.returncode
        return otherwise if status is None else f"the shard's process {_described(status)}"

    def hide(self) -> None:
        """Remove the socket's path after connecting, so that nothing is left behind if both processes are killed."""
        if self.folder is not None:
            self.folder.remove()

    def kill(self) -> None:
        """Kill the process."""
        if self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """Ask the process to exit, then kill it. Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        await asyncio.wait({self._forwarding, self._hearing}, timeout=_DEATH_S)
        if self.steps is not None:
            self.steps.close()
        self.hide()
        sweep()  # folders that the process may have left behind

    async def _hear(self, show: Progress) -> None:
        """Read the shard's standard output. Lines without a known prefix come from the backend and are forwarded."""
        while self._process.stdout is not None and (line := await self._process.stdout.readline()):
            text = line.decode(errors="replace")
            if text.startswith(PROGRESS):
                show(*json.loads(text.removeprefix(PROGRESS)))
            elif text.startswith(LISTENING) and not self._address.done():
                self._address.set_result(text.removeprefix(LISTENING).strip())
            else:
                pass_on(text)
        if not self._address.done():
            self._address.set_result("")

    async def _forward(self) -> None:
        """Forward the shard's standard error, except the line with the reason for its exit, which becomes part of the error."""
        while self._process.stderr is not None and (line := await self._process.stderr.readline()):
            if line.startswith(_ERROR) and not self._error.done():
                self._error.set_result(line.removeprefix(_ERROR).strip().decode(errors="replace"))
            else:
                pass_on(line.decode(errors="replace"))


def _described(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


class ShardRunner(Protocol):
    """What runs a shard: a process of this machine, or processes of others."""

    async def ended(self) -> str:
        """Wait until it has ended. Return how it ended."""

    async def reason(self, otherwise: str) -> str:
        """Return why it has ended or is about to; `otherwise` if it keeps running."""

    def kill(self) -> None:
        """Kill it."""

    async def end(self) -> None:
        """Ask it to exit, then kill it. Idempotent."""


class ChildShard:
    """A `ShardClient` of a shard that `process` runs. Its errors report how that ended."""

    def __init__(self, process: ShardRunner, shard: ShardClient) -> None:
        self.process = process
        self._shard = shard

    async def info(self) -> ShardInfo:
        """Return the description of the open shard."""
        return await self._shard.info()

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up. Raises BackendError."""
        try:
            return await self._shard.warmup(plan, progress)
        except DeviceLost as error:
            raise DeviceLost(await self.process.reason(str(error))) from error

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Have the shard compile a grammar. Raises InvalidGrammar, GrammarsBusy, BackendError."""
        return await self._shard.prepare(grammar, cost)

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Have the shard tokenize a prompt with images. Raises ImageRejected, MediaBusy, BackendError."""
        return await self._shard.tokenize_images(prompt)

    async def exchange(self, turn: Turn) -> TurnResult:
        """Execute one turn. Raises DeviceLost if the process has ended."""
        try:
            return await self._shard.exchange(turn)
        except DeviceLost as error:
            raise DeviceLost(await self.process.reason(str(error))) from error

    async def healthy(self) -> bool:
        """Return whether the shard responds and has not lost its device."""
        return await self._shard.healthy()

    async def ended(self) -> str:
        """Wait until the process ends."""
        return await self.process.ended()

    async def abandon(self) -> None:
        """Kill the process."""
        self.process.kill()

    async def close(self) -> None:
        """Disconnect from the shard and end its process. Idempotent."""
        await self._shard.close()
        await self.process.end()


async def spawn_shard(model: Path, arguments: Sequence[str], progress: Progress) -> ShardProcess:
    """Start `tgi shard MODEL` on a socket in a folder of its own. Call from the main thread: the child dies with the caller's
    thread."""
    folder = RunFolder("shard")
    ours, theirs = socket.socketpair()
    with theirs:
        own = [str(model), "--uds-path", str(folder.path / "shard"), "--steps", str(theirs.fileno())]
        process = await run_shard([*own, *arguments], os.environ, (theirs.fileno(),))
    return ShardProcess(process, progress, folder, ours)


async def run_shard(
    arguments: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int] = ()
) -> asyncio.subprocess.Process:
    """Start `tgi shard` with these arguments, which contain all settings, in an environment without a configuration file. It inherits
    the file descriptors `inherited`, and dies with the caller's thread."""
    return await asyncio.create_subprocess_exec(
        *python("tgi_core", "shard", *arguments, "--parent", os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in environment.items() if name != "TGI_CONFIG"},
        limit=1 << 20,
        pass_fds=inherited,
    )


async def open_child_shard(model: Path, arguments: Sequence[str], plan: Plan, progress: Progress) -> ReadyShard:
    """Start a shard, wait until it has opened its model, and warm it up. `arguments` are flags of `tgi shard`. Raises
    StartupError."""
    process = await spawn_shard(model, arguments, progress)
    try:
        connected = await _connected(process, model)
        return await warm_up(ChildShard(process, connected.shard), connected.info, plan, _untold)
    except BaseException:
        process.kill()  # nothing can be lost yet, and a process that is loading a model would not react to a request to exit
        await process.end()
        raise


def _untold(what: str, done: int, total: int, unit: str) -> None:
    """Ignore progress, which the child has already printed."""


async def _connected(process: ShardProcess, model: Path) -> ConnectedShard:
    address = await process.address()
    try:
        return await connect(address, model, None, _untold, reached=process.hide, steps=process.steps)
    except StartupError as error:
        raise StartupError(await process.reason(str(error), _GOODBYE_S)) from error
