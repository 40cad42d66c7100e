"""Early answers to large bodies can be read, within bounds."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tgi_router import ServedModel, create_app, lingering_close

from tests.router.conftest import Serve
from tests.router.scripted import ScriptedGenerator, says
from tests.router.serving import Served, already, serving
from tests.router.test_connection import read_all, status
from tgi_core.config import Settings

MOST = 1_000_000
SIZE = 20 * MOST
EARLY = {
    413: b"POST /generate HTTP/1.1\r\nauthorization: Bearer key\r\ncontent-type: application/json\r\n",
    401: b"POST /generate HTTP/1.1\r\ncontent-type: application/json\r\n",
    404: b"POST /nowhere HTTP/1.1\r\nauthorization: Bearer key\r\n",
    405: b"PUT /generate HTTP/1.1\r\nauthorization: Bearer key\r\n",
    415: b"POST /generate HTTP/1.1\r\nauthorization: Bearer key\r\ncontent-type: text/plain\r\n",
}
FRAMED = {
    "length": (b"content-length: %d\r\n\r\n" % SIZE, b"x" * SIZE),
    "chunks": (b"transfer-encoding: chunked\r\n\r\n", (b"2710\r\n" + b"x" * 10_000 + b"\r\n") * (SIZE // 10_000) + b"0\r\n\r\n"),
}


@pytest.fixture(scope="module")
def guarded(model: ServedModel) -> Iterator[Served]:
    """A server with a key."""
    settings = Settings(payload_limit=MOST, api_key="key")
    generator = ScriptedGenerator(lambda request: says("Hello"))
    with serving(lambda made: create_app(settings, model, made), already(generator), settings) as served:
        yield served


@pytest.mark.parametrize("connection_header", [b"close", b"keep-alive"])
@pytest.mark.parametrize("framing", FRAMED)
@pytest.mark.parametrize("expected", EARLY)
def test_an_early_answer_can_be_read(guarded: Served, expected: int, framing: str, connection_header: bytes) -> None:
    """A client that sends all of a body that nobody wants, and reads only then, reads why, whether it wants to go on or not."""
    head, body = FRAMED[framing]
    with guarded.connect() as connection:
        connection.sendall(EARLY[expected] + b"host: x\r\nconnection: " + connection_header + b"\r\n" + head)
        connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
        assert status(answer) == expected and answer.count(b"HTTP/1.1 ") == 1


def test_one_that_waits_to_be_told(guarded: Served) -> None:
    """A client that asks before it sends is told at once, and the connection ends."""
    with guarded.connect() as connection:
        connection.sendall(EARLY[413] + b"host: x\r\nexpect: 100-continue\r\nconnection: close\r\n" + FRAMED["length"][0])
        assert status(read_all(connection)) == 413


@pytest.mark.parametrize(("name", "value"), [("MOST_BYTES", 1_000_000), ("LONGEST_S", 0.0), ("SILENCE_S", 0.05)])
def test_lingering_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str, value: float) -> None:
    """Whoever sends without an end, or stays without a word, is let go: after so many bytes, so long, or so long a silence."""
    monkeypatch.setattr(lingering_close, "SILENCE_S", 0.05)
    monkeypatch.setattr(lingering_close, name, value)
    served, _ = serve(payload_limit=1000)
    with served.connect() as connection:
        head = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        connection.sendall(head + b"content-length: 1000000000000\r\n\r\n")
        answer = connection.recv(12)
        if name != "SILENCE_S":
            with suppress(ConnectionError):
                while True:
                    connection.sendall(b"x" * 100_000)
        read_all(connection)
    assert answer == b"HTTP/1.1 413"


async def test_the_client_has_reset_the_connection() -> None:
    """Where nobody is left to read, there is nothing to close, and no error."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=server)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    lingering_close.half_close(transport)
    transport.close()
