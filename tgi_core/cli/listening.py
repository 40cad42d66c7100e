"""The HTTP server around the app: one socket, bound early; SIGTERM lets running requests finish and exits with status 0."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from anyio import CancelScope
from tgi_router import AdmissionControl, Connection, ConnectionPolicy, HttpServer

from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Lifecycle, Phase

_log = logging.getLogger(__name__)

LAST_WORDS_S = 1.0
"""How long before the deadline streams are told that they end, so that their clients hear of it."""

SPARE_DESCRIPTORS = 64
"""File descriptors that no connection gets."""


def bind(settings: Settings) -> socket.socket:
    """The socket to listen on, bound before any slow work. Raises StartupError."""
    host, port = _address(settings.hostname), settings.port
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"--port {port}: already in use on {host}; choose another port or stop the process that uses it"
            ) from error
        raise StartupError(f"--hostname {host} --port {port}: cannot listen: {error.strerror}") from error
    return listener


def _address(hostname: str) -> str:
    """The hostname if it is an address; else 0.0.0.0, as TGI does, since containers set HOSTNAME to a name of their own."""
    try:
        ipaddress.ip_address(hostname)
    except ValueError:
        if hostname != "localhost":
            _log.warning("--hostname %s is not an IP address; listening on 0.0.0.0", hostname)
            return "0.0.0.0"
    return hostname


class DrainingServer(HttpServer):
    """A uvicorn server that leaves signals to `listen`, and that ends in steps: it drains, closes its socket, lets what runs come to
    an end, and tells the rest that time is up."""

    def __init__(self, app: Any, settings: Settings, lifecycle: Lifecycle) -> None:
        policy = ConnectionPolicy.of(settings)
        policy.max_descriptor = highest_descriptor()
        config = uvicorn.Config(
            app, ws="none", lifespan="off", log_config=None, log_level="warning", access_log=False, server_header=False
        )
        super().__init__(config, policy)
        self._lifecycle = lifecycle
        self._drain_delay = settings.drain_delay
        self._grace = settings.graceful_termination_timeout
        self._deadline = 0.0
        self.stopped_by: int | None = None
        """The first signal."""
        self.abort: Callable[[], object] = lambda: None
        """Called at the second one."""
        self.listening = asyncio.Event()
        self.serving: asyncio.Task[None]

    def pass_through(self, admission: AdmissionControl) -> None:
        """From now on requests come through one to the app."""
        self.policy.admission = admission

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        CancelScope()  # anyio loads its other half at the first use, which may come when no file can be opened
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing: uvicorn would raise the signal again after shutdown, so that the exit status is not 0."""
        yield

    def stop(self, number: int) -> None:
        """A signal: the first one begins to drain, the second ends everything at once."""
        if self._deadline:
            self.force_exit = self.should_exit = True
            self.abort()
            return
        self.stopped_by = number
        self._deadline = asyncio.get_running_loop().time() + self._grace
        # nobody balances requests to what is run in a terminal, or has not served yet
        alone = number == signal.SIGINT or self._lifecycle.phase is Phase.STARTING
        delay = 0.0 if alone else min(self._drain_delay, self._grace)
        self._lifecycle.draining()
        self.policy.closing = True
        for connection in self._connections():
            connection.be_last()
        asyncio.get_running_loop().call_later(delay, self.close)

    def close(self) -> None:
        """Take no more connections, and end."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs come to an end until the deadline; then tell it, and end it."""
        clock = asyncio.get_running_loop().time
        self.stop_listening()
        for connection in self._connections():
            connection.shutdown()
        await self._idle_until(self._deadline - LAST_WORDS_S)
        self._lifecycle.end()
        await self._idle_until(max(self._deadline, clock() + LAST_WORDS_S))
        for connection in self._connections():
            connection.reset()
        await self._cancel_tasks()

    def _connections(self) -> list[Connection]:
        return [each for each in self.server_state.connections if isinstance(each, Connection)]

    async def _idle_until(self, deadline: float) -> None:
        """Until nothing runs, at most until `deadline`."""
        clock, state = asyncio.get_running_loop().time, self.server_state
        while (state.connections or state.tasks) and not self.force_exit and clock() < deadline:
            await asyncio.sleep(0.02)

    async def _cancel_tasks(self) -> None:
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS_S)


def highest_descriptor() -> int:
    """The highest file descriptor that a connection may have: the limit of this process, raised as far as it goes, less what the
    server needs for its own work. Descriptors are given out from below, so a high one means that few are left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(SPARE_DESCRIPTORS, soft // 4)


@asynccontextmanager
async def listening(app: Any, listener: socket.socket, settings: Settings, lifecycle: Lifecycle) -> AsyncIterator[DrainingServer]:
    """Serve while the block runs, at most until SIGTERM or SIGINT has ended the server."""
    server = DrainingServer(app, settings, lifecycle)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop, number)
    server.serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.listening.wait()
    try:
        yield server
    finally:
        server.force_exit = True
        server.close()
        await server.serving
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, lambda *_: os._exit(0))  # whoever asks again does not want to wait for what is left
