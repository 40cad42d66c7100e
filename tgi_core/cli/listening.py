"""The HTTP server that runs the app, from its socket to graceful shutdown. Its socket is bound early; on SIGTERM, it drains
running requests and exits with status 0."""

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
from dataclasses import replace
from typing import Any

import uvicorn
from anyio import CancelScope
from tgi_router import AdmissionControl, Connection, ConnectionPolicy, HttpServer

from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.lifecycle import Lifecycle, Phase

_log = logging.getLogger(__name__)

LAST_WORDS_S = 1.0
"""Seconds before the shutdown deadline at which streams are ended, so that clients still receive the reason."""

SPARE_DESCRIPTORS = 64
"""File descriptors reserved for purposes other than connections."""


def bind(settings: Settings) -> socket.socket:
    """Bind the socket to listen on, before any slow work. Raises StartupError."""
    host, port = settings.hostname, settings.port
    family, address = _resolve(host, port)
    listener = None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
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


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return the address family and the address to bind. Raises StartupError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # a name with an empty or a long label cannot even be encoded
        raise StartupError(
            f"--hostname {host}: cannot be resolved: {getattr(error, 'strerror', None) or error}; give an address or a name of "
            "this machine, 0.0.0.0 for all its IPv4 addresses or :: for all its addresses"
        ) from error
    family, *_, address = found[0]
    return family, address


def settle_hostname(settings: Settings, origin: str) -> Settings:
    """Listen on 0.0.0.0, as TGI does, if the hostname is not an address and its `origin` is the variable HOSTNAME: containers set it
    to their own name, which says nothing about where to listen."""
    if origin != "environment HOSTNAME" or settings.hostname == "localhost" or _is_address(settings.hostname):
        return settings
    _log.warning(
        "the environment variable HOSTNAME is %s, which is not an IP address; listening on 0.0.0.0. --hostname says otherwise",
        settings.hostname,
    )
    return replace(settings, hostname="0.0.0.0")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def url_of(listener: socket.socket) -> str:
    """Return the URL at which a bound socket is reached; an IPv6 address has brackets."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


class DrainingServer(HttpServer):
    """A uvicorn server with graceful shutdown: it drains, closes its socket, waits for running requests and ends the rest at the
    deadline. Signals are handled by `listening`."""

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
        """The first signal received."""
        self.abort: Callable[[], object] = lambda: None
        """Called on the second signal."""
        self.listening = asyncio.Event()
        self.serving: asyncio.Task[None]

    def pass_through(self, admission: AdmissionControl) -> None:
        """Pass requests through `admission` to the app from now on."""
        self.policy.admission = admission

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        CancelScope()  # makes anyio import its backend now; later, no file descriptor may be left
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Disable uvicorn's signal handling, which re-raises the signal after shutdown and so changes the exit status."""
        yield

    def stop(self, number: int) -> None:
        """Handle a signal: the first starts draining, the second ends everything immediately."""
        if self._deadline:
            self.force_exit = self.should_exit = True
            self.abort()
            return
        self.stopped_by = number
        self._deadline = asyncio.get_running_loop().time() + self._grace
        # no load balancer routes to a server that runs in a terminal or has not served yet
        alone = number == signal.SIGINT or self._lifecycle.phase is Phase.STARTING
        delay = 0.0 if alone else min(self._drain_delay, self._grace)
        self._lifecycle.draining()
        self.policy.closing = True
        for connection in self._connections():
            connection.be_last()
        asyncio.get_running_loop().call_later(delay, self.close)

    def close(self) -> None:
        """Stop accepting connections and shut down."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running requests until the deadline, then notify and end the rest."""
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
        """Wait until no request is running, at most until `deadline`."""
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
    """Raise the process's limit of file descriptors to its maximum and return the highest descriptor that a connection may have,
    leaving some for other purposes. The lowest free descriptor is always used first, so a high number means that few are left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(SPARE_DESCRIPTORS, soft // 4)


@asynccontextmanager
async def listening(app: Any, listener: socket.socket, settings: Settings, lifecycle: Lifecycle) -> AsyncIterator[DrainingServer]:
    """Serve while the block runs, or until SIGTERM or SIGINT has ended the server."""
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
            signal.signal(number, lambda *_: os._exit(0))  # another signal skips the remaining cleanup
