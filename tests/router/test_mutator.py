"""Broken HTTP on every route, byte by byte."""

from __future__ import annotations

import json
import os
import random
import re
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.router.test_lifecycle import GENERATING
from tests.serve.process import ServerProcess, served
from tests.serve.raw import connect

CROWDS = int(os.environ.get("MUTATED_CROWDS", "150"))
"""Of eight requests each; `python -m tests.soak mutants` has more."""

BODIES = {**GENERATING, "/tokenize": {"inputs": "Hi"}, "/chat_tokenize": GENERATING["/v1/chat/completions"]}
ASKED = (
    "/",
    "/health",
    "/livez",
    "/readyz",
    "/info",
    "/metrics",
    "/v1/models",
    "/v2",
    "/v2/models/m",
    "/docs",
    "/api-doc/openapi.json",
)
PLAIN = [b"GET %s HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n" % path.encode() for path in ASKED]
POSTS = [
    b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    % (path.encode(), len(body), body)
    for path, given in BODIES.items()
    for body in [json.dumps(given).encode()]
]
CHUNKED = [
    b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    % (path.encode(), len(body), body)
    for path, given in BODIES.items()
    for body in [json.dumps(given).encode()]
]
MORSELS = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"0\r\n\r\n", b"ffffffffffffffff", b"-1", b"HTTP/1.1", b"HTTP/1.0",
    b"HTTP/9.9", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Content-Length: 5\r\n", b"Content-Length: -5\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Host: y\r\n", b"GET", b"PUT",
    b"CONNECT", b"OPTIONS", b"HEAD", b"%2e%2e/", b"%00", b"//", b"?", b"#", b"*", b"http://x/", b"\xff\xfe", b"{", b"[" * 300, b'"',
    b"Content-Encoding: gzip\r\n", b"Content-Type: text/plain\r\n", b"X: " + b"y" * 70_000 + b"\r\n", b"A: b\r\n" * 120, b" " * 30_000,
)  # fmt: skip

SECONDS = 30
"""Within which the server must answer, or close."""


@dataclass(frozen=True, repr=False)
class Sent:
    """A request in pieces; a report shows so much of it as helps. Its client may have no more to say then."""

    pieces: tuple[bytes, ...]
    ends: bool

    def __repr__(self) -> str:
        return ", ".join(repr(piece if len(piece) < 80 else piece[:80] + b"..") for piece in self.pieces)


def mutant(chance: random.Random) -> Sent:
    """A good request, or two, with some bytes taken away, doubled, put in or changed, in pieces."""
    data = bytearray(b"".join(chance.choice(PLAIN + POSTS + CHUNKED) for _ in range(chance.randint(1, 2))))
    for _ in range(chance.randint(0, 4)):
        place = chance.randint(0, len(data))
        length = chance.randint(0, 12)
        match chance.choice(["cut", "double", "morsel", "byte", "stop"]):
            case "cut":
                del data[place : place + length]
            case "double":
                data[place:place] = data[place : place + 4 * length]
            case "morsel":
                data[place:place] = chance.choice(MORSELS)
            case "byte":
                data[place : place + 1] = bytes(chance.choices(range(256), k=chance.randint(1, 2)))
            case "stop":
                del data[place:]
    cuts = sorted(chance.randint(0, len(data)) for _ in range(chance.randint(0, 2)))
    pieces = tuple(bytes(data[start:end]) for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True))
    return Sent(pieces, chance.random() < 0.9)


requests = st.builds(mutant, st.randoms(use_true_random=False))
"""Mutants that hypothesis can make smaller."""


@contextmanager
def patient_server() -> Iterator[ServerProcess]:
    """A server in a process of its own that does not wait long."""
    quick = [part for name in ("header", "body", "keep-alive") for part in (f"--{name}-timeout", "0.5")]
    with served("--backend", "reference", "--payload-limit", "20000", "--max-total-tokens", "64", *quick) as server:
        yield server


@pytest.fixture(scope="module")
def patient() -> Iterator[ServerProcess]:
    """One for all that is here."""
    with patient_server() as server:
        yield server


STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")
"""Bodies may speak of HTTP/1.1 too."""


@pytest.fixture(scope="module", autouse=True)
def known(patient: ServerProcess) -> set[str]:
    """The series before anything was asked."""
    return series(patient)


@settings(max_examples=CROWDS, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(crowd=st.lists(requests, min_size=8, max_size=8))
def test_mutated(patient: ServerProcess, crowd: list[Sent]) -> None:
    """Whatever bytes come, on eight connections at a time, what is answered is well-formed and no fault of the server's."""
    for sent, answers in zip(crowd, exchange(patient, crowd), strict=True):
        for status in statuses(answers):
            assert status < 500, (status, sent, answers)


def test_afterwards(patient: ServerProcess, known: set[str]) -> None:
    """The server is as before: it runs, it answers, and there are no series but those there were."""
    assert patient.child.poll() is None
    body = {"inputs": "Hi", "parameters": {"max_new_tokens": 2}}
    assert httpx.post(f"{patient.url}/generate", json=body, timeout=30).status_code == 200
    assert series(patient) == known
    assert not [line for line in patient.lines if "Traceback" in line], "".join(patient.lines)


def series(server: ServerProcess) -> set[str]:
    """All series of the metrics."""
    lines = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def exchange(server: ServerProcess, crowd: list[Sent]) -> list[bytes]:
    """What the server says on each connection until it closes; on those that do not end their side, until all others are closed."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server.url)) for _ in crowd]
        for connection, sent in zip(connections, crowd, strict=True):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(OSError):
                for piece in sent.pieces:
                    connection.sendall(piece)
                if sent.ends:
                    connection.shutdown(socket.SHUT_WR)
        answers, open_ones = dict.fromkeys(connections, b""), list(connections)
        awaited = {connection for connection, sent in zip(connections, crowd, strict=True) if sent.ends}
        while awaited or select.select(open_ones, [], [], 0)[0]:
            ready = select.select(open_ones, [], [], SECONDS)[0]
            assert ready, f"no end within {SECONDS} s: {[crowd[connections.index(each)] for each in awaited]}"
            for connection in ready:
                piece = b""
                with suppress(ConnectionError):
                    piece = connection.recv(1 << 16)
                answers[connection] += piece
                if not piece:
                    open_ones.remove(connection)
                    awaited.discard(connection)
        return list(answers.values())


def statuses(data: bytes) -> Iterator[int]:
    """The statuses of answers one after another."""
    for line in STATUS_LINE.findall(data):
        yield int(line)
