"""The HTTP server around the app: one socket, bound early; SIGTERM lets running requests finish and exits with status 0."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Generator
from typing import Any

import uvicorn

from tgi_core.config import Settings
from tgi_core.errors import StartupError

_log = logging.getLogger(__name__)


def bind(settings: Settings) -> socket.socket:
    """The socket to listen on, bound before any slow work. Raises StartupError."""
    host, port = _address(settings.hostname), settings.port
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(f"--port {port}: in use on {host}; choose another, or end the process that has it") from error
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


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals to `listen`, and says when it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing: uvicorn would raise the signal again after shutdown, so that the exit status is not 0."""
        yield


async def listen(
    app: Any,
    listener: socket.socket,
    settings: Settings,
    on_ready: Callable[[], None],
    ended: asyncio.Event,
    abort: Callable[[], object],
) -> None:
    """Serve until SIGTERM, SIGINT or `ended`. A second signal calls `abort` and waits for nobody, also while the server is closing."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=settings.graceful_termination_timeout,
        server_header=False,
    )
    server = HttpServer(config, on_ready)

    def stop() -> None:
        if server.should_exit:
            server.force_exit = True
            abort()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    watching = asyncio.create_task(ended.wait())
    watching.add_done_callback(lambda done: None if done.cancelled() else stop())
    try:
        await server.serve(sockets=[listener])
    finally:
        watching.cancel()
