"""Clients that end their side of a connection: those that go on reading, and those that are gone."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from tgi_router import ServedModel, create_app

from tests.router.conftest import Serve
from tests.router.scripted import HOLD, says
from tests.router.serving import Served, read_until, serving
from tests.router.shard import Shard
from tests.router.test_connection import WHOLE, read_all
from tests.router.test_leaving import ROUTES, failures, held
from tgi_core.config import Settings


@pytest.fixture(scope="module")
def shard(model: ServedModel) -> Shard:
    """The parts behind the router."""
    return Shard(model.tokenizer)


@pytest.fixture(scope="module")
def instance(model: ServedModel, shard: Shard) -> Iterator[Served]:
    """The whole instance: its answers take a while."""
    settings = Settings(max_concurrent_requests=64)
    with serving(lambda generator: create_app(settings, model, generator), shard.opening, settings) as served:
        yield served


def ask_and_end(served: Served, path: str, body: str, version: str = "1.1") -> bytes:
    """All that the server says to a client that has no more to say."""
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with served.connect() as connection:
        connection.sendall(head.encode() + body.encode())
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_whoever_reads_on_is_answered(instance: Served, shard: Shard, path: str, body: str, version: str) -> None:
    """A client that ends its side behind its request, as `nc -N` does, gets all of the answer, and then the connection ends."""
    given = json.loads(body)
    given.update({"max_tokens": 40, "temperature": 0} if path.startswith("/v1") else {"parameters": {"max_new_tokens": 40}})
    steps = len(shard.steps)
    head, _, told = ask_and_end(instance, path, json.dumps(given), version).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert told.count(b"data: ") >= 30 or told.endswith((b"}", b"]"))
    assert len(shard.steps) > steps + 10
    assert failures(instance) == {}


def test_chunked_or_not(instance: Served) -> None:
    """A stream to a client of HTTP/1.0 has no chunks and ends with the connection; its events are those of HTTP/1.1."""
    body = '{"inputs":"Hi","parameters":{"max_new_tokens":20}}'
    head, _, told = ask_and_end(instance, "/generate_stream", body, "1.0").partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"content-length" not in head
    events = [event for event in told.decode().split("\n\n") if event.startswith("data: ")]
    whole = instance.client.post("/generate_stream", content=body, headers={"content-type": "application/json"}).text
    assert events == [event for event in whole.split("\n\n") if event]


@pytest.mark.parametrize("wish", ["", "connection: keep-alive\r\n"])
@pytest.mark.parametrize("path", ["/metrics", "/docs", "/openapi.json", "/info", "/v1/models", "/nowhere"])
def test_old_clients_read_to_the_end(instance: Served, path: str, wish: str) -> None:
    """To a client of HTTP/1.0 no answer is chunked, and every connection ends, also one that the client wants to keep."""
    with instance.connect() as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n{wish}\r\n".encode())
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert f"content-length: {len(body)}".encode() in head


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_whoever_leaves_later_is_noticed(serve: Serve, path: str, body: str) -> None:
    """A client that first ends its side and then is gone, having read what there was, cancels what it asked for."""
    served, generator = serve(held)
    prompts = body.count('"a","b"') + 1
    with served.send(path, body) as connection:
        connection.shutdown(socket.SHUT_WR)
        for _ in range(prompts):
            generator.submitted.get(timeout=5)
        assert connection.recv(1) == b"H"
    for _ in range(prompts):
        generator.cancelled.get(timeout=5)
    while not failures(served):
        served.client.get("/health")
    assert failures(served) == {"dropped": prompts}


def test_half_a_request(serve: Serve) -> None:
    """A client that ends its side before its request is complete is not answered; the complete ones before it are."""
    served, generator = serve()
    with served.connect() as connection:
        connection.sendall(WHOLE * 3 + WHOLE[:-1])
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection).count(b"HTTP/1.1 200 OK") == 3
    assert generator.submitted.qsize() == 3


@pytest.mark.parametrize("count", [2, 60, 500])
def test_pipelined_in_order(serve: Serve, count: int) -> None:
    """Requests that come at once, with the end right behind them, are answered in their order and one at a time."""
    served, _ = serve(lambda request: says(f"<{request.stopping.max_new_tokens}>"))
    wanted = [1 + number % 40 for number in range(count)]
    with served.connect() as connection:
        for most in wanted:
            body = b'{"inputs":"Hi","parameters":{"max_new_tokens":%d}}' % most
            connection.sendall(WHOLE.split(b"content-length")[0] + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        connection.shutdown(socket.SHUT_WR)
        answers = read_all(connection)
    told = [int(part.split(b">")[0]) for part in answers.split(b'"<')[1:]]
    assert told == wanted


def test_pipelined_and_gone(serve: Serve) -> None:
    """Of a client that leaves with several requests open the one under way is cancelled, and the others never run."""
    served, generator = serve(lambda request: [HOLD])
    with served.connect() as connection:
        connection.sendall(WHOLE * 10)
        running = generator.submitted.get(timeout=5)
    assert generator.cancelled.get(timeout=5) is running
    while not failures(served):
        served.client.get("/health")
    assert generator.submitted.empty() and failures(served) == {"dropped": 1}


def test_what_is_pipelined_is_bounded(serve: Serve) -> None:
    """While one request is answered, the others wait: one runs, a few are looked at, and the rest stays with the client."""
    served, generator = serve(lambda request: [HOLD])
    sent, most = 0, 64_000_000
    with served.connect() as connection:
        connection.sendall(WHOLE)
        generator.submitted.get(timeout=5)
        connection.settimeout(0.5)
        crowd = WHOLE * 1000
        with pytest.raises(TimeoutError):
            while sent < most:
                sent += connection.send(crowd)
        assert generator.submitted.empty()
    generator.cancelled.get(timeout=5)
    generator.script = lambda request: says("Hello")
    assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 200


def test_an_end_inside_a_stream(serve: Serve) -> None:
    """Between two events of a stream the client is asked by a comment whether it is there; one that reads on is not cancelled."""
    served, generator = serve(held)
    with served.send("/generate_stream", '{"inputs":"Hi"}') as connection:
        read_until(connection, b'"text":"Hello"')
        connection.shutdown(socket.SHUT_WR)
        read_until(connection, b"3\r\n:\n\n\r\n3\r\n:\n\n\r\n")
        assert generator.cancelled.empty()
    generator.cancelled.get(timeout=5)
