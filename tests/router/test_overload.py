"""More requests than there is room for: who is let in, what a refusal costs, and who may go first."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers
from tgi_router.clients import Clients
from tgi_router.errors import ModelOverloaded
from tgi_router.permits import Permits

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.serving import Served, read_until
from tests.router.test_leaving import failures, held
from tgi_core.config import Settings
from tgi_core.errors import StartupError

BODY = b'{"inputs":"Hi","parameters":{"max_new_tokens":60}}'
HEAD = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def as_client(served: Served, address: str) -> socket.socket:
    """A connection from an address of the loopback."""
    return socket.create_connection(served.address, timeout=30, source_address=(address, 0))


@pytest.mark.parametrize("path", ["/generate", "/", "/v1/completions", "/v1/chat/completions", "/invocations", "/vertex"])
def test_refused_from_the_head(serve: Serve, path: str) -> None:
    """Where there is no room a request is refused before a byte of its body has come, and the connection can be used again."""
    served, generator = serve(held, max_concurrent_requests=1)
    with served.send("/generate_stream", BODY.decode()) as busy, served.connect() as refused:
        read_until(busy, b'"text":"Hello"')
        refused.sendall(HEAD % (path.encode(), len(BODY)))
        answer = read_until(refused, b"\r\n\r\n").lower()
        assert answer.startswith(b"http/1.1 429") and b"retry-after: 1\r\n" in answer and b"x-request-id" in answer
        read_until(refused, b"}") if not answer.endswith(b"}") and b"}" not in answer else None
        refused.sendall(BODY + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_until(refused, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert failures(served)["overloaded"] == 1 and generator.submitted.qsize() == 1


@pytest.mark.parametrize(
    ("more", "status", "told"),
    [
        (b"authorization: Bearer right\r\n", b"429", b""),
        (b"authorization: Bearer wrong\r\n", b"401", b""),
        (b"", b"401", b""),
        (b"authorization: Bearer right\r\nx-request-id: mine\r\n", b"429", b"x-request-id: mine\r\n"),
        (b"authorization: Bearer right\r\norigin: http://page\r\n", b"429", b"access-control-allow-origin: *\r\n"),
        (b"authorization: Bearer right\r\nconnection: close\r\n", b"429", b""),
    ],
    ids=["key", "wrong key", "no key", "id", "browser", "close"],
)
def test_what_a_refusal_says(serve: Serve, more: bytes, status: bytes, told: bytes) -> None:
    """Refused at once or by the app, a request needs the key first, keeps its id, and gets what a browser wants; its connection ends
    where it is to be the last."""
    served, _ = serve(held, max_concurrent_requests=1, api_key="right")
    with served.connect() as busy, served.connect() as refused:
        busy.sendall(
            (HEAD % (b"/generate_stream", len(BODY))).replace(b"host: x\r\n", b"host: x\r\nauthorization: Bearer right\r\n")
            + BODY
        )
        read_until(busy, b'"text":"Hello"')
        refused.sendall((HEAD % (b"/generate", len(BODY))).replace(b"host: x\r\n", b"host: x\r\n" + more) + BODY)
        answer = read_until(refused, b"\r\n\r\n").lower()
        assert answer[9:12] == status and told in answer and answer.count(b"x-request-id: ") == 1
        if b"close" in more:
            while refused.recv(65536):
                pass


def test_a_stream_is_told_inside(serve: Serve) -> None:
    """TGI's route for streams tells it by an event, also before the body has come."""
    served, _ = serve(held, max_concurrent_requests=1)
    with served.send("/generate_stream", BODY.decode()) as busy, served.connect() as refused:
        read_until(busy, b'"text":"Hello"')
        refused.sendall(HEAD % (b"/generate_stream", len(BODY)))
        assert b"text/event-stream" in read_until(refused, b'data: {"error":"Model is overloaded","error_type":"overloaded"}\n\n')


def test_a_flood_keeps_nobody_out(serve: Serve) -> None:
    """One address fills the server, and is refused what is more; another one waits for the next place, and gets it."""
    served, generator = serve(held, max_concurrent_requests=4)
    with ExitStack() as stack:
        flood = [stack.enter_context(as_client(served, "127.0.0.1")) for _ in range(4)]
        for each in flood:
            each.sendall(HEAD % (b"/generate_stream", len(BODY)) + BODY)
            read_until(each, b'"text":"Hello"')
        polite = stack.enter_context(as_client(served, "127.0.0.2"))
        polite.sendall(HEAD % (b"/generate", len(BODY)) + BODY)
        for _ in range(20):
            assert served.client.post("/generate", content=BODY, headers={"content-type": "application/json"}).status_code == 429
        generator.script = lambda request: says("Hello")
        flood[0].close()
        assert b"generated_text" in read_until(polite, b"}")


clients = st.sampled_from(["a", "a", "a", "b", "c"])


@given(
    limit=st.integers(1, 8),
    moves=st.lists(st.tuples(st.sampled_from(["ask", "ask", "end", "leave", "lend", "again"]), clients), max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_permits(limit: int, moves: list[tuple[str, str]]) -> None:
    """Never more than the limit and what was lent; nobody waits while there is room, and nobody is refused who has less than a share
    unless as many wait as may; nothing is kept of those who have gone."""
    asyncio.run(play(limit, moves))


async def play(limit: int, moves: list[tuple[str, str]]) -> None:
    """Clients that come, leave, stop to read and go on."""
    permits = Permits(limit)
    asked: dict[str, list[asyncio.Task[None]]] = {"a": [], "b": [], "c": []}
    lent: dict[str, list[object]] = {"a": [], "b": [], "c": []}
    ended: list[object] = []
    for move, client in moves:
        own = [each for each in asked[client] if each.done() and each.exception() is None]
        if move == "ask":
            held = len(own) - len(lent[client])
            asked[client].append(asyncio.create_task(permits.take(client, 1)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            last = asked[client][-1]
            if last.done() and last.exception() is not None:
                others_wait = any(not each.done() for tasks in asked.values() for each in tasks)
                assert isinstance(last.exception(), ModelOverloaded) and (held >= limit // 3 or others_wait)
        elif move == "end" and len(own) > len(lent[client]):
            asked[client].remove(own[0])
            permits.give_back(client, 1)
        elif move == "leave" and (waiting := [each for each in asked[client] if not each.done()]):
            waiting[-1].cancel()
            await asyncio.gather(waiting[-1], return_exceptions=True)
            asked[client].remove(waiting[-1])
        elif move == "lend" and len(own) > len(lent[client]):
            request = object()
            permits.suspend(client, request, lambda request=request: ended.append(request))
            lent[client].append(request)
        elif move == "again" and lent[client]:
            assert permits.resume(lent[client].pop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked = {name: [each for each in tasks if not each.done() or each.exception() is None] for name, tasks in asked.items()}
        waiting = [each for tasks in asked.values() for each in tasks if not each.done()]
        assert not waiting or permits.taken >= limit, "nobody waits while there is room"
    for client, tasks in asked.items():
        for each in tasks:
            if not each.done():
                each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for request in lent[client]:
            permits.resume(request)
        permits.give_back(client, len([each for each in tasks if not each.cancelled()]))
    assert permits.idle


def test_of_many_that_stand_still_one_ends() -> None:
    """As many requests that nobody reads may stand still as there are permits; of one more, one of whoever has most ends."""
    ended: list[int] = []
    permits = Permits(2)
    for number, client in enumerate(["a", "b", "a", "a"]):
        asyncio.run(permits.take(client, 1))
        permits.suspend(client, number, lambda number=number: ended.append(number))
    assert ended[0] == 0 and 1 not in ended and permits.taken == 0


@pytest.mark.parametrize(
    ("header", "host", "given", "same_as"),
    [
        (None, "10.0.0.1", "", ("10.0.0.1", "other")),
        (None, "2001:db8::1", "", ("2001:db8::ffff:2", "")),
        (None, "::ffff:10.0.0.1", "", ("10.0.0.1", "")),
        ("authorization", "10.0.0.1", "Bearer a", ("10.0.0.2", "Bearer a")),
        ("x-forwarded-for", "10.0.0.1", "forged, 1.2.3.4", ("10.0.0.2", "1.2.3.4")),
        ("x-forwarded-for", "10.0.0.1", "", ("10.0.0.1", "")),
    ],
)
def test_who_asks(header: str | None, host: str, given: str, same_as: tuple[str, str]) -> None:
    """By address, of IPv6 by what its owner did not choose; by a gateway's header where there is one, of a list by its last."""
    who = Clients(header)

    def name(host: str, value: str) -> str:
        scope = {"type": "http", "client": (host, 1)}
        return who.of(scope, Headers({header: value} if header and value else {}))

    assert name(host, given) == name(*same_as)
    assert name(host, given) != name("192.0.2.1", "other") and len(name(host, given)) <= 39
    assert header is None or "a" not in given or given not in name(host, given)


@pytest.mark.parametrize(
    ("settings", "trusted"),
    [
        ({}, False),
        ({"high_priority_from": ("*",)}, True),
        ({"high_priority_from": ("127.0.0.0/8",)}, True),
        ({"high_priority_from": ("10.0.0.1",)}, False),
        ({"high_priority_from": ("Bearer vip",), "client_header": "authorization"}, True),
        ({"high_priority_from": ("Bearer other",), "client_header": "authorization"}, False),
    ],
)
def test_who_may_go_first(serve: Serve, settings: dict[str, object], trusted: bool) -> None:
    """`high` goes before other clients only where the operator says so; before the client's own it always does."""
    served, generator = serve(**settings)
    headers = {"x-request-priority": "high", "authorization": "Bearer vip"}
    assert served.client.post("/generate", json={"inputs": "Hi"}, headers=headers).status_code == 200
    asked = generator.submitted.get(timeout=10).scheduling
    assert (asked.priority, asked.urgent) == (1, trusted)


def test_networks_are_networks() -> None:
    """What is no network ends the start, and the error says what to do."""
    with pytest.raises(StartupError, match=r"--high-priority-from gateway: must be an IP address.*--client-header"):
        Settings(high_priority_from=("gateway",))
    Settings(high_priority_from=("gateway",), client_header="x-tenant")
