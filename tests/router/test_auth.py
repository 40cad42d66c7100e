"""The api key guards every route of the app but the health ones, however a request is spelled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from tgi_router import ServedModel, create_app

from tests.router.scripted import ScriptedGenerator, says
from tests.router.serving import Served, already, read_until, serving
from tgi_core.config import Settings

KEY = "Sécret"
PUBLIC = {
    "/", "/health", "/ping", "/livez", "/readyz",
    "/v2/health/live", "/v2/health/ready", "/v2/models/x/ready", "/v2/models/x/versions/x/ready",
    "/ui", "/ui/", "/ui/main.js",
}  # fmt: skip
"""Paths that GET and HEAD may ask without the key: written out, so that no route becomes one unnoticed."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS")
TRICKS = ("/{}", "//{}", "/./{}", "/x/../{}", "/{}/", "/{};x", "/%2e/{}", "/{}%00")


@pytest.fixture(scope="module")
def app(model: ServedModel) -> Starlette:
    """An app with a key."""
    return create_app(Settings(api_key=KEY), model, ScriptedGenerator(lambda request: says("Hello")))


@pytest.fixture(scope="module")
def locked(app: Starlette) -> Iterator[Served]:
    """The app on a socket."""
    with serving(lambda made: app, already(ScriptedGenerator(lambda request: says("Hello")))) as served:
        yield served


def paths(app: Starlette) -> list[str]:
    """A path of every route."""
    return sorted({re.sub(r"{\w+}", "x", route.path.replace("/ui/{asset}", "/ui/main.js")) for route in app.routes})  # type: ignore[attr-defined]


def test_every_route_and_method(app: Starlette, locked: Served) -> None:
    """Without the key every route answers every method with 401, but the health routes GET and HEAD, and any path OPTIONS."""
    for path in paths(app):
        for method in METHODS:
            status = locked.client.request(method, path).status_code
            assert (status == 200) == (method == "OPTIONS" or (path in PUBLIC and method in ("GET", "HEAD"))), (method, path)
            assert status in (200, 401)


WRONG_KEYS: list[list[bytes]] = [
    [b"Bearer wrong"], [b"Bearer " + KEY.encode()[:3]], [b"Bearer " + KEY.upper().encode()], [b"Bearer " + KEY.encode()] * 2,
    [b"Bearer wrong", b"Bearer " + KEY.encode()], [b"Bearer"],
]  # fmt: skip


def test_every_route_with_every_wrong_key(app: Starlette, locked: Served) -> None:
    """A wrong key, a part of the right one, the right one in capitals, twice, or beside another opens no route to any method; what is
    public stays so."""
    for path in paths(app):
        for method in METHODS:
            expected = 200 if method == "OPTIONS" or (path in PUBLIC and method in ("GET", "HEAD")) else 401
            for values in WRONG_KEYS:
                headers = [(b"authorization", value) for value in values]
                assert locked.client.request(method, path, headers=headers).status_code == expected, (method, path, values)


def test_every_spelling_of_every_route(app: Starlette, locked: Served) -> None:
    """However a guarded path is written, and whatever the Host says, no method gets past the key; a Host that is no host is refused."""
    guarded = [path.lstrip("/") for path in paths(app) if path not in PUBLIC]
    hosts = (b"a", b"a:80", b"localhost/health", b"a/health?x=", b"health")
    for path in guarded:
        for trick in (*TRICKS, "//v1/../{}", "/health/../{}", "/livez/%2e%2e/{}", "/{}/../{}", "/%2e%2e/{}", "/{}?key=x"):
            for method in (b"GET", b"POST"):
                for host in hosts:
                    target = trick.format(path, path).encode()
                    status = ask(locked, method + b" " + target + b" HTTP/1.1\r\ncontent-length: 0\r\nhost: " + host)
                    assert status == (400 if b"/" in host else 401), (method, target, host)


def test_spellings(app: Starlette, locked: Served) -> None:
    """Odd spellings of a guarded path, and guarded paths behind a public one, are guarded."""
    guarded = [path.lstrip("/") for path in paths(app) if path not in PUBLIC]
    targets = [trick.format(path) for path in guarded for trick in TRICKS]
    targets += [f"/health/../{path}" for path in guarded]
    for target in targets:
        assert ask(locked, f"GET {target} HTTP/1.1\r\nhost: a".encode()) == 401, target
    for host in ("a/health?x=", "a/health#", "@/health", "/health"):
        assert ask(locked, f"GET /info HTTP/1.1\r\nhost: {host}".encode()) in (400, 401)


def ask(served: Served, head: bytes) -> int:
    """The status that a raw request gets."""
    with served.connect() as connection:
        connection.sendall(head + b"\r\n\r\n")
        return int(read_until(connection, b"\r\n\r\n").split(b" ")[1])


@pytest.mark.parametrize(
    "values",
    [
        [b"Bearer"], [b"Bearer " + KEY.encode()[:-1]], [b"Bearer " + KEY.lower().encode()],
        [b"Bearer " + KEY.upper().encode()], [b"Bearer " + KEY.encode() + b" x"], [b"Bearer " + KEY.encode() + b"x"],
        [b"Bearer  " + KEY.encode()], [b"Basic " + KEY.encode()], [KEY.encode()], [b"Bearer " + KEY.encode()] * 2,
        [b"Bearer " + KEY.encode("latin-1")],
    ],
)  # fmt: skip
def test_keys(locked: Served, values: list[bytes]) -> None:
    """Only the one right key, byte for byte, opens."""
    headers = [(b"authorization", value) for value in values]
    answer = locked.client.get("/info", headers=headers)
    assert (answer.status_code, answer.content, answer.headers["www-authenticate"]) == (401, b"", "Bearer")
    for scheme in (b"Bearer ", b"bearer "):
        assert locked.client.get("/info", headers=[(b"authorization", scheme + KEY.encode())]).status_code == 200


def test_a_space_behind_the_key(app: Starlette, locked: Served) -> None:
    """White space behind the key, as a copied line has it, is not a part of it, also where no HTTP parser removes it."""
    assert ask(locked, b"GET /info HTTP/1.1\r\nhost: a\r\nauthorization: Bearer " + KEY.encode() + b" \t") == 200
    scope = {"type": "http", "method": "GET", "path": "/info", "headers": [(b"authorization", b"Bearer " + KEY.encode() + b" ")]}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({**scope, "query_string": b"", "client": ("a", 1), "server": ("b", 2), "scheme": "http"}, receive, send))
    assert sent[0]["status"] == 200


def test_keys_from_other_places(locked: Served) -> None:
    """A key in a query or in a cookie is none."""
    assert locked.client.get("/info", params={"api_key": KEY, "key": KEY}).status_code == 401
    assert locked.client.get("/info", headers={"cookie": "authorization=x", "x-api-key": "x"}).status_code == 401


@pytest.mark.parametrize("path", ["/info", "/v1/models"])
def test_the_key_of_anthropics_clients(locked: Served, path: str) -> None:
    """`x-api-key` opens with the one right key, byte for byte, also beside the right bearer token; nothing opens beside a wrong one."""
    right, bearer = (b"x-api-key", KEY.encode()), (b"authorization", b"Bearer " + KEY.encode())
    for headers in ([right], [right, bearer]):
        assert locked.client.get(path, headers=headers).status_code == 200
    wrong: list[list[tuple[bytes, bytes]]] = [
        [right, right],
        [right, (b"x-api-key", b"wrong")],
        [(b"x-api-key", b"wrong"), bearer],
        [right, (b"authorization", b"Bearer wrong")],
        [right, (b"authorization", b"")],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"Bearer " + KEY.encode())],
        [(b"x-api-key", KEY.upper().encode())],
    ]
    for headers in wrong:
        answer = locked.client.get(path, headers=headers)
        assert (answer.status_code, answer.content) == (401, b""), headers


def test_anthropics_clients_are_told(locked: Served) -> None:
    """On Anthropic's routes a wrong key is an error of its type."""
    answer = locked.client.post("/v1/messages", headers={"x-api-key": "wrong"})
    assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"


def test_preflight_needs_no_key(locked: Served) -> None:
    """A browser asks for permission without a key."""
    asks = {"origin": "http://a.example", "access-control-request-method": "POST"}
    assert (
        locked.client.options("/generate", headers={**asks, "access-control-request-headers": "content-type"}).status_code == 200
    )
