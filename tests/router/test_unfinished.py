"""Bodies that begin and do not end, on many connections at once."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from tgi_router import ServedModel, create_app
from tgi_router.body_buffers import BodyBuffers
from tgi_router.connection_policy import PAYLOADS, ConnectionPolicy

from tests.router.broken import HEAD
from tests.router.scripted import ScriptedGenerator, says
from tests.router.serving import Served, already, read_until, serving
from tests.router.test_connection import read_all, status
from tests.waiting import wait_until
from tgi_core.config import Settings
from tgi_core.errors import StartupError

SIZE, MOST = 300_000, 2_000_000
SETTINGS = Settings(payload_limit=SIZE, total_payload_limit=MOST)
BODY = json.dumps({"inputs": "Hi", "unknown": "x" * (SIZE - 100)}).encode()


@pytest.fixture(scope="module")
def bounded(model: ServedModel) -> Iterator[Served]:
    """A server that holds about seven of the largest bodies."""
    generator = ScriptedGenerator(lambda request: says("Hello"))
    with serving(lambda made: create_app(SETTINGS, model, made), already(generator), SETTINGS) as served:
        yield served


def held(served: Served) -> int:
    """Bytes of unfinished bodies, by the server's account."""
    return served.server.policy.bodies.held


def answered(crowd: list[socket.socket]) -> list[socket.socket]:
    """Those that have been told something."""
    return select.select(crowd, [], [], 0)[0]


def stalled(served: Served, stack: ExitStack, sent: int, framing: bytes) -> socket.socket:
    """A request whose body stops after so many bytes."""
    connection = stack.enter_context(closing(served.connect()))
    connection.sendall(HEAD + framing)
    connection.sendall(BODY[:sent])
    return connection


@pytest.mark.parametrize("framing", [b"content-length: %d\r\n\r\n" % len(BODY), b"transfer-encoding: chunked\r\n\r\n49000\r\n"])
def test_stalled_bodies(bounded: Served, framing: bytes) -> None:
    """However many large bodies stall, what is held of them is bounded: those that stalled first are told 503 and when to come again.
    Meanwhile small requests and large ones that do come are answered; afterwards nothing is held."""
    with ExitStack() as stack:
        crowd = [stalled(bounded, stack, SIZE - 1000, framing) for _ in range(40)]
        kept = MOST // (SIZE - 1000)
        wait_until(lambda: len(answered(crowd)) >= len(crowd) - kept)  # until the server has read it all
        for _ in range(2):
            assert bounded.client.post("/generate", json={"inputs": "Hi"}).status_code == 200
            large = bounded.client.post("/generate", content=BODY, headers={"content-type": "application/json"})
            assert large.status_code == 200
        assert held(bounded) <= MOST
        for connection in answered(crowd):
            answer = read_all(connection)
            assert status(answer) == 503 and b"\r\nretry-after: 1\r\n" in answer
        last = (set(crowd) - set(answered(crowd))).pop()
        last.sendall(BODY[SIZE - 1000 :] if b"length" in framing else BODY[SIZE - 1000 : 0x49000] + b"\r\n0\r\n\r\n")
        assert status(read_until(last, b"\r\n\r\n")) == (200 if b"length" in framing else 400)
    wait_until(lambda: not held(bounded))
    assert bounded.client.get("/health").status_code == 200


def test_small_bodies_stay(bounded: Served) -> None:
    """Small bodies that are slow stay where large ones stall."""
    body = b'{"inputs":"Hi"}'
    with ExitStack() as stack:
        small = [stack.enter_context(closing(bounded.connect())) for _ in range(50)]
        for connection in small:
            connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body[:-1])
        for _ in range(20):
            stalled(bounded, stack, SIZE - 1000, b"content-length: %d\r\n\r\n" % len(BODY))
        assert bounded.client.post("/generate", json={"inputs": "Hi"}).status_code == 200
        for connection in small:
            connection.sendall(body[-1:])
            assert status(read_until(connection, b"}")) == 200


def test_one_that_drips_goes_before_one_that_flows() -> None:
    """A byte now and then does not count as coming on; a body that has ended is in nobody's way."""
    gone: list[str] = []
    bodies = BodyBuffers(1_000_000)
    bodies.grow("done", 300_000, lambda: gone.append("done"))
    for name in ("flows", "drips"):
        bodies.grow(name, 200_000, lambda name=name: gone.append(name))
    bodies.drop("done")
    for _ in range(100):
        bodies.grow("flows", 4_000, lambda: None)
        bodies.grow("drips", 1, lambda: None)
    assert not gone and bodies.held == 800_100
    bodies.grow("new", 300_000, lambda: gone.append("new"))
    assert gone == ["drips"] and bodies.held == 900_000
    for name in ("new", "flows", "flows"):
        bodies.drop(name)
    assert bodies.held == 0


def test_one_that_is_complete_stays() -> None:
    """A body that is there and waits to be read counts, but it is those that are not there yet that go."""
    gone: list[str] = []
    bodies = BodyBuffers(1_000_000)
    bodies.grow("complete", 900_000, lambda: gone.append("complete"))
    bodies.complete("complete")
    bodies.grow("new", 100_000, lambda: gone.append("new"))
    assert not gone
    bodies.grow("new", 1, lambda: None)
    assert gone == ["new"] and bodies.held == 900_000
    bodies.drop("complete")
    assert bodies.held == 0


def test_the_bound() -> None:
    """It is a multiple of the largest body unless it is given, and never less than one."""
    for settings, limit in ((Settings(), PAYLOADS * 2_000_000), (SETTINGS, MOST)):
        gone: list[str] = []
        bodies = ConnectionPolicy.of(settings).bodies
        bodies.grow("one", limit, lambda gone=gone: gone.append("one"))
        assert not gone
        bodies.grow("one more", 1, lambda: None)
        assert gone == ["one"]
    with pytest.raises(StartupError, match="--total-payload-limit 10 must be at least --payload-limit 20"):
        Settings(payload_limit=20, total_payload_limit=10)
