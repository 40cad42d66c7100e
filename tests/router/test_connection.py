"""What a connection is bounded by, and which requests it refuses, seen from a bare socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tgi_router import ServedModel, create_app

from tests.router.broken import BODY, HEAD, PAYLOAD_LIMIT, REFUSED
from tests.router.conftest import Serve
from tests.router.scripted import ScriptedGenerator, says
from tests.router.serving import Served, already, read_until, serving
from tgi_core.config import Settings

WHOLE = HEAD + b"content-length: 15\r\n\r\n" + BODY
QUICK = {"header_timeout": 0.2, "body_timeout": 0.2, "keep_alive_timeout": 0.2}


@pytest.fixture(scope="module")
def plain(model: ServedModel) -> Iterator[Served]:
    """A server with the defaults."""
    generator, settings = ScriptedGenerator(lambda request: says("Hello")), Settings(payload_limit=PAYLOAD_LIMIT)
    with serving(lambda made: create_app(settings, model, made), already(generator), settings) as served:
        yield served


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes; a reset ends it too."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            data += piece
    return data


def exchange(served: Served, *pieces: bytes) -> bytes:
    """What the server says to bytes, and whether it then closes: the socket's own time limit would end the test."""
    with served.connect() as connection:
        for piece in pieces:
            connection.sendall(piece)
        return read_all(connection)


def status(answer: bytes) -> int:
    """The status of the first answer."""
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(plain: Served, name: str) -> None:
    """What is too large, or could be read in two ways, is refused with a status; the connection ends, and the server goes on."""
    request, expected = REFUSED[name]
    with plain.connect() as connection:
        with suppress(BrokenPipeError):
            connection.sendall(request)
        assert status(read_until(connection, b"\r\n\r\n")) == expected
    assert plain.client.get("/health").status_code == 200


def test_a_refusal_can_be_read(plain: Served) -> None:
    """Whoever goes on sending a body that is too large, and reads only then, still reads why, and is let go."""
    with plain.connect() as connection:
        connection.sendall(HEAD + b"content-length: 1000000\r\n\r\n")
        for _ in range(100):
            connection.sendall(b" " * 5_000)
        assert status(read_until(connection, b"length limit exceeded")) == 413


def test_a_body_that_was_not_wanted(plain: Served) -> None:
    """A body that comes after its answer is passed over, and the connection goes on with the next request."""
    with plain.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")
        assert status(read_until(connection, b"\r\n\r\n")) == 200
        connection.sendall(b"x" * 100_000 + WHOLE)
        assert status(read_until(connection, b"}")) == 200


def test_bodies_in_pieces(plain: Served) -> None:
    """A body is the same in one piece, byte by byte, and in chunks with extensions and trailers; trailers are no headers."""
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in BODY) + b"0\r\nauthorization: x\r\nhost: y\r\n\r\n"
    with plain.connect() as connection:
        for request in (WHOLE, HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks):
            for byte in request:
                connection.send(bytes([byte]))
            assert b"Hello" in read_until(connection, b"}")


def test_pipelined(plain: Served) -> None:
    """However many requests come at once, all are answered, one after another, in their order."""
    last = WHOLE.replace(b"host", b"connection: close\r\nhost")
    for count in (20, 60, 1000):
        answers = exchange(plain, WHOLE * count + last)
        assert answers.count(b"HTTP/1.1 200") == answers.count(b"Hello") == count + 1


def test_a_bad_request_behind_a_good_one(plain: Served) -> None:
    """The good one is answered; what follows is not taken for a part of it."""
    answers = exchange(plain, WHOLE + b"GET / HTTP/1.1\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200") == 1 and answers.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"x"])
def test_upgrades_are_declined(plain: Served, protocol: bytes) -> None:
    """A client that offers another protocol, as Java's does with each request, is answered in HTTP/1.1, body and all."""
    offer = (
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: %s\r\nhttp2-settings: AAMAAABkAAQAAP__\r\ncontent-length: " % protocol
    )
    with plain.connect() as connection:
        for _ in range(2):
            connection.sendall(WHOLE.replace(b"content-length: ", offer))
            assert b"Hello" in read_until(connection, b"}")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET /health HTTP/1.1\r\nhost:", 408),
        (b"\r\n", 408),
        (HEAD + b"content-length: 15\r\n\r\n{", 408),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n", 408),
        (b"", None),
    ],
    ids=["head", "empty line", "body", "chunked body", "nothing"],
)
def test_too_slow(serve: Serve, sent: bytes, expected: int | None) -> None:
    """A request that does not come to its end is told 408, whatever was sent of it, and nothing is kept of it."""
    served, _ = serve(max_concurrent_requests=1, **QUICK)
    answer = exchange(served, sent)
    assert (status(answer) if answer else None) == expected
    assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 200


def test_dripping_does_not_help(serve: Serve) -> None:
    """The time for a head and for a body counts as a whole: a byte now and then does not extend it."""
    served, _ = serve(**QUICK)
    for request in (b"GET /health HTTP/1.1\r\nhost: x\r\n", HEAD + b"content-length: 100000\r\n\r\n"):
        with served.connect() as connection:
            connection.sendall(request)
            connection.settimeout(0.02)
            answer = b""
            while not answer:
                connection.sendall(b"a")
                with suppress(TimeoutError):
                    answer = connection.recv(100)
        assert status(answer) == 408


def test_idle(serve: Serve) -> None:
    """A connection on which nothing is asked is closed; one that is used is not, and no limit cuts an answer that takes long."""
    served, generator = serve(lambda request: says("Hello", " world"), **QUICK)
    with served.connect() as connection:
        start = time.monotonic()
        connection.sendall(WHOLE)
        read_until(connection, b"}")
        assert connection.recv(100) == b""
        assert time.monotonic() - start >= QUICK["keep_alive_timeout"], "a busy machine only adds to it"
    generator.script = lambda request: [says("Hello")[0], None]
    with served.send("/generate_stream", BODY.decode()) as connection:
        read_until(connection, b"Hello")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(100)


def test_series(plain: Served) -> None:
    """Methods, paths and headers that nobody knows add no series to the metrics."""
    before = series(plain)
    for number in range(500):
        request = b"%s /%d?%d HTTP/1.1\r\nhost: x\r\nx-%d: %d\r\nuser-agent: %d\r\n\r\n"
        method = [b"GET", b"PURGE", b"M-SEARCH", b"PROPFIND", b"X%d" % number][number % 5]
        with plain.connect() as connection:
            connection.sendall(request % (method, *[number] * 5))
            assert status(read_until(connection, b"\r\n\r\n")) in (400, 404, 405)
    assert series(plain) == before


def series(served: Served) -> set[str]:
    """All series of the metrics."""
    lines = served.client.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def test_no_answer_waits_for_an_acknowledgement(plain: Served) -> None:
    """Nagle's algorithm is off, whatever listener a connection came from: it would hold each part of an answer back for 40 ms."""
    with plain.connect() as connection:
        connection.sendall(WHOLE)
        read_until(connection, b"}")
        transports = [each.transport for each in plain.server.server_state.connections]
        options = [each.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in transports]
    assert options
    assert all(options)
