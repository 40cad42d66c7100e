"""Class 15: what HTTP itself allows. Heads and bodies without bound, requests that two servers read differently, methods as labels."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tgi_router import ServedModel

from tests.hostile.server import ServerUnderTest, opened
from tests.hostile.watch import Watch
from tests.router.broken import PAYLOAD_LIMIT, REFUSED
from tests.router.serving import read_until

STRANGE_REQUESTS = 10_000


@pytest.fixture(scope="module")
def instance(model: ServedModel, watch: Watch) -> Iterator[ServerUnderTest]:
    """A server of this class's own: its bodies must be small."""
    with opened(model, watch, {"payload_limit": PAYLOAD_LIMIT}) as running:
        yield running


@pytest.mark.parametrize("name", REFUSED)
def test_refused(instance: ServerUnderTest, name: str) -> None:
    """What is too large or has two meanings gets its status, and no step of the device."""
    before, (request, expected) = instance.steps(), REFUSED[name]
    with instance.served.connect() as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        answer = read_until(connection, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % expected), answer
    assert instance.steps() == before


def test_a_name_that_comes_twice(instance: ServerUnderTest) -> None:
    """Of two fields of one name the last one counts, for checks and for the device alike."""
    limits = '"max_new_tokens":100000,"max_new_tokens":2'
    answer = instance.post("/generate", f'{{"inputs":"Hi","parameters":{{"details":true,{limits}}}}}')
    assert answer.json()["details"]["generated_tokens"] == 2
    swapped = '"max_new_tokens":2,"max_new_tokens":0'
    assert instance.refuses("/generate", f'{{"inputs":"Hi","parameters":{{{swapped}}}}}').status_code == 422


def test_methods_and_paths_are_no_labels(instance: ServerUnderTest) -> None:
    """Ten thousand methods and paths that nobody has leave the metrics with the series that they had."""
    before = series(instance)
    chance = random.Random(15)
    with instance.served.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(STRANGE_REQUESTS // 50):
            crowd = [strange(chance) for _ in range(50)]
            connection.sendall(b"".join(crowd))
            for request in crowd:
                wanted = b"HTTP/1.1 200" if request.startswith(b"OPTIONS") else b"HTTP/1.1 4"
                assert read_answer(connection).startswith(wanted)
    assert series(instance) == before


def strange(chance: random.Random) -> bytes:
    """A request with a method that HTTP knows, to a path that nobody does."""
    method = chance.choice([b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"PROPFIND", b"SEARCH", b"LINK", b"MKCOL"])
    return method + b" /%x HTTP/1.1\r\nhost: x\r\n\r\n" % chance.getrandbits(64)


def read_answer(connection: socket.socket) -> bytes:
    """One answer; those here have no body, or one whose length is told."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        assert piece, head
        head += piece
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while length:
        length -= len(connection.recv(length))
    return head


def series(instance: ServerUnderTest) -> set[str]:
    """The names and labels of all series."""
    lines = instance.client.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
