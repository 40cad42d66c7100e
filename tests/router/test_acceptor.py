"""What is refused before it becomes a connection, and in whose turn newcomers are looked at."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.router.conftest import Serve
from tests.router.serving import Served, read_until
from tests.router.test_leaving import failures, held
from tests.router.test_overload import BODY, HEAD, as_client

REQUEST = HEAD % (b"/generate", len(BODY)) + BODY


@contextmanager
def standing_still(served: Served) -> Iterator[None]:
    """The server does nothing while the block runs: what clients do meanwhile is all there when it goes on."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait(30)

    served.server.call_soon(stand)
    stands.wait(30)
    try:
        yield
    finally:
        goes_on.set()


@pytest.fixture
def full(serve: Serve) -> Iterator[Served]:
    """A server without room for another request."""
    served, _ = serve(held, max_concurrent_requests=1)
    with served.send("/generate_stream", BODY.decode()) as busy:
        read_until(busy, b'"text":"Hello"')
        yield served


def test_refused_at_the_door(full: Served) -> None:
    """A request that has come whole is refused in the same words, and its connection ends in order."""
    with full.connect() as refused:
        refused.sendall(REQUEST[:-1])
        ordinary = read_until(refused, b"\r\n\r\n").lower()
    with ExitStack() as stack:
        with standing_still(full):
            at_door = stack.enter_context(full.connect())
            at_door.sendall(REQUEST)
        answer = read_until(at_door, b"\r\n\r\n").lower()
        while piece := at_door.recv(1 << 16):
            answer += piece
    assert answer.endswith(b'{"error":"model is overloaded","error_type":"overloaded"}')
    names = [{line.partition(b":")[0] for line in each.partition(b"\r\n\r\n")[0].split(b"\r\n")} for each in (ordinary, answer)]
    assert names[1] == names[0] | {b"connection"} and b"connection: close\r\n" in answer
    assert failures(full)["overloaded"] == 2


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"200"),
        (REQUEST.replace(b"host: x\r\n", b""), b"400"),
        (REQUEST.replace(b"/generate", b"/nowhere"), b"404"),
        (REQUEST.replace(b"host: x\r\n", b"host: x\r\norigin: http://page\r\n"), b"429"),
        (REQUEST.replace(b"host: x\r\n", b"host: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n"), b"429"),
        (REQUEST + REQUEST, b"429"),
        (REQUEST[:-1], b"429"),
        (b"\x16\x03\x01", b"400"),
    ],
    ids=["probe", "no host", "no route", "browser", "upgrade", "two", "unfinished", "noise"],
)
def test_let_in(full: Served, sent: bytes, status: bytes) -> None:
    """All else becomes a connection, and is answered there."""
    with ExitStack() as stack:
        with standing_still(full):
            own = stack.enter_context(full.connect())
            own.sendall(sent)
        assert read_until(own, b"\r\n\r\n")[9:12] == status


def test_each_address_has_a_line_of_its_own(full: Served) -> None:
    """Who comes after hundreds of connections of another address is answered before most of them. What the door lets in costs
    many turns of the event loop, so however fast the machine is, most of them still wait."""
    browser = REQUEST.replace(b"host: x\r\n", b"host: x\r\norigin: http://page\r\n")
    with ExitStack() as stack:
        with standing_still(full):
            crowd = [stack.enter_context(as_client(full, "127.0.0.1")) for _ in range(400)]
            for each in crowd:
                each.sendall(browser)
            other = stack.enter_context(as_client(full, "127.0.0.2"))
            other.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        told = read_until(other, b"\n\r\n") + b"".join(iter(lambda: other.recv(1 << 16), b""))
        refused = [line for line in told.split(b"\n") if line.startswith(b"tgi_request_failure") and b"overloaded" in line]
        assert not refused or float(refused[0].split()[-1]) < 300
        for each in crowd:
            assert read_until(each, b"\r\n")[9:12] == b"429"


def test_clients_that_leave_at_the_door(full: Served) -> None:
    """Whoever has left before the answer disturbs nobody."""
    with standing_still(full):
        for data in (b"", REQUEST[:20], REQUEST):
            with full.connect() as own:
                own.sendall(data)
    assert full.client.get("/health").status_code == 200
