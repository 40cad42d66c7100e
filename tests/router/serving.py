"""A real server on a loopback socket, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import httpx
import uvicorn
from tgi_router import ConnectionPolicy, Generator, HttpServer

from tgi_core.config import Settings

Opening = Callable[[], AbstractAsyncContextManager[Generator]]
SECONDS = 60
"""How long a client waits for what should come: so long takes only what hangs, on a busy machine too."""


class EndingServer(HttpServer):
    """Tells when it listens, and ends at once when told to."""

    def __init__(self, config: uvicorn.Config, policy: ConnectionPolicy, listening: threading.Event) -> None:
        super().__init__(config, policy)
        self._listening = listening
        self._ending = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    async def main_loop(self) -> None:
        self._listening.set()
        await self._ending.wait()

    def end(self) -> None:
        """Called from the thread of the test."""
        self.call_soon(self._ending.set)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have it called on the server's loop."""
        self.loop.call_soon_threadsafe(callback)


class Served:
    """A running server. `client` talks to it."""

    def __init__(self, address: tuple[str, int], server: EndingServer) -> None:
        self.address = address
        self.server = server
        self.client = httpx.Client(base_url=f"http://{address[0]}:{address[1]}", timeout=SECONDS)

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(self.address, timeout=SECONDS)

    def send(self, path: str, body: str) -> socket.socket:
        """A bare connection on which a JSON request has been sent."""
        data = body.encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        connection = self.connect()
        connection.sendall(head.encode() + data)
        return connection


@contextmanager
def serving(
    create: Callable[[Generator], Any], opening: Opening, settings: Settings | None = None, send_buffer: int = 0
) -> Iterator[Served]:
    """Serve the app that `create` makes of the generator that `opening` yields; `settings` are those of the connections.
    `send_buffer` is what the kernel keeps for a client that does not read, in bytes."""
    policy = ConnectionPolicy.of(settings or Settings())
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    listener.bind(("127.0.0.1", 0))
    listening = threading.Event()
    servers: list[EndingServer] = []

    async def main() -> None:
        async with opening() as generator:
            app = create(generator)
            policy.admission = getattr(getattr(app, "state", None), "admission", None)
            config = uvicorn.Config(app, ws="none", log_config=None, lifespan="on", timeout_graceful_shutdown=1)
            servers.append(EndingServer(config, policy, listening))
            await servers[0].serve(sockets=[listener])

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert listening.wait(SECONDS)
        served = Served(listener.getsockname(), servers[0])
        with served.client:
            yield served
    finally:
        servers[0].end()  # it takes its time to end, which no test needs to wait for


def already(generator: Generator) -> Opening:
    """An opening for a generator that needs none."""

    @asynccontextmanager
    async def opening() -> AsyncIterator[Generator]:
        yield generator

    return opening


def read_until(connection: socket.socket, ending: bytes) -> bytes:
    """Everything up to and including `ending`."""
    data = b""
    while ending not in data:
        piece = connection.recv(65536)
        assert piece, f"closed after {data!r}"
        data += piece
    return data
