"""Clients that do not read what they asked for."""

from __future__ import annotations

import json
import re
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tgi_router import ServedModel, create_app

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.serving import Served, read_until, serving
from tests.router.shard import Shard
from tests.router.test_leaving import failures
from tgi_core.backend import WarmupPlan
from tgi_core.config import Settings
from tgi_core.scheduler import GenerationStream
from tgi_core.scheduler.stream import BUFFER_BYTES
from tgi_core.scheduler.types import NotRead
from tgi_core.wire.types import Generation, Token

BODY = '{"inputs":"Hi","parameters":{"max_new_tokens":60}}'


def send_unread(served: Served, path: str, body: str) -> socket.socket:
    """A request by a client with a tiny window."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect(served.address)
    data = body.encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate_stream", BODY),
        ("/v1/completions", '{"prompt":["a","b"],"stream":true}'),
        ("/v1/chat/completions", '{"messages":[{"role":"user","content":"Hi"}],"n":2,"stream":true}'),
        ("/generate", BODY),
        ("/v1/completions", '{"prompt":["a","b"]}'),
    ],
)
def test_stalled(serve: Serve, path: str, body: str) -> None:
    """A client that does not read loses its connection after a while, and with it its generation; others notice nothing."""
    large = says(*["x" * 40_000] * 200)  # more than the buffers of a connection take
    served, generator = serve(lambda request: large, max_concurrent_requests=2, stream_stall_timeout=0.3)
    with send_unread(served, path, body) as connection:
        generator.submitted.get(timeout=5)
        generator.script = lambda request: says("Hello")
        poll = select.poll()
        poll.register(connection, 0)  # only whether it is reset
        assert poll.poll(10_000)
    while '"stream":true' in body and not failures(served):
        pass
    for _ in range(3):
        assert served.client.post("/v1/completions", json={"prompt": ["a", "b"]}).status_code == 200


def test_a_reader_that_goes_on(serve: Serve) -> None:
    """A client that reads slowly, but reads, gets everything."""
    served, _ = serve(lambda request: says(*["x" * 4_000] * 200), stream_stall_timeout=5)
    with send_unread(served, "/generate_stream", BODY) as connection:
        data = b""
        while b"0\r\n\r\n" not in data[-9:]:
            data += connection.recv(2000)
    assert data.count(b"data: ") == 201


@pytest.fixture
def shard(model: ServedModel) -> Shard:
    """The parts behind the router."""
    return Shard(model.tokenizer)


@pytest.fixture
def instance(model: ServedModel, shard: Shard) -> Iterator[Served]:
    """The whole instance, with little patience."""
    settings = Settings(stream_stall_timeout=0.5, max_concurrent_requests=64)
    with serving(lambda generator: create_app(settings, model, generator), shard.opening, settings, send_buffer=4096) as served:
        yield served


def test_rows_of_slow_readers_are_freed(instance: Served, shard: Shard) -> None:
    """Among slow readers others are answered in full; afterwards no row and no block is left."""
    assert shard.loop is not None
    free = shard.loop.snapshot().blocks_total
    parameters = '{"max_new_tokens":400,"top_n_tokens":5}'
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(send_unread(instance, "/generate_stream", f'{{"inputs":"no end","parameters":{parameters}}}'))
        for _ in range(4):
            answer = instance.client.post("/generate_stream", json={"inputs": "Hi", "parameters": {"max_new_tokens": 20}}).text
            assert answer.count("data: ") == 20 and "error" not in answer
        while failures(instance).get("dropped", 0) < 4:
            pass
    load = shard.loop.snapshot()
    assert (load.running, load.queued, load.blocks_free) == (0, 0, free)


def test_who_does_not_read_holds_no_place(model: ServedModel) -> None:
    """Clients that read nothing hold every row and permit; others are answered. Read at last, an answer is what it would have been."""
    shard = Shard(model.tokenizer, WarmupPlan(max_rows=2, max_row_tokens=2048))
    settings = Settings(max_concurrent_requests=4)
    body = '{"inputs":"no end","parameters":{"max_new_tokens":1500,"top_n_tokens":5}}'
    with ExitStack() as stack:
        app = serving(lambda generator: create_app(settings, model, generator), shard.opening, settings, send_buffer=4096)
        served = stack.enter_context(app)
        stopped = [stack.enter_context(send_unread(served, "/generate_stream", body)) for _ in range(4)]
        assert shard.loop is not None
        while shard.loop.snapshot().paused < 4:
            served.client.get("/health")
        for _ in range(4):
            answer = served.client.post("/generate", json={"inputs": "Hi", "parameters": {"max_new_tokens": 20}})
            assert answer.status_code == 200, answer.text
        assert not failures(served)
        read = [tokens(read_until(each, b"\r\n0\r\n\r\n")) for each in stopped]
        alone = served.client.post("/generate", json=json.loads(body.replace("}}", ',"details":true}}'))).json()["details"][
            "tokens"
        ]
    assert read == [[token["id"] for token in alone]] * 4


def tokens(answer: bytes) -> list[int]:
    """The token ids of a stream, as it came."""
    body = b"".join(re.split(rb"(?:^|\r\n)[0-9a-f]+\r\n", answer.partition(b"\r\n\r\n")[2]))
    return [json.loads(each[6:])["token"]["id"] for each in body.split(b"\n\n") if each.startswith(b"data: ")]


async def test_what_waits_is_bounded() -> None:
    """Whatever is delivered to a reader that does not read, at most the buffer waits; the request ends once, and the reader then
    gets what waited and is told why there is no more."""
    cancelled: list[bool] = []
    stream = GenerationStream(0.0, lambda: cancelled.append(True))
    made = Generation(1, (Token(1, "x" * 1000, -0.5, special=False),))
    pushed = 0
    while not cancelled:
        stream.push(made)
        pushed += 1
    assert pushed * 1000 < BUFFER_BYTES and pushed > 300
    stream.cancel()
    for _ in range(pushed):
        assert await anext(stream) is made
    with pytest.raises(NotRead):
        await anext(stream)
    assert cancelled == [True]


async def test_a_reader_that_keeps_up_has_no_bound() -> None:
    """However much there is in all, and in one step, it comes through."""
    stream = GenerationStream(0.0, lambda: None)
    large = Generation(1, tuple(Token(1, "x" * 1000, -0.5, special=False) for _ in range(2000)))
    for _ in range(100):
        stream.push(large)
        assert await anext(stream) is large
