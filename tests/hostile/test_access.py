"""Ways around the api key that worked elsewhere; the matrix of all routes, methods and spellings is tests/router/test_auth."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tgi_router import ServedModel
from tgi_router.anthropic_errors import is_anthropic

from tests.hostile.server import ServerUnderTest, opened
from tests.hostile.watch import Watch
from tests.router.serving import read_until
from tests.router.test_limits import ROUTES

KEY = "Correct-Horse-1"
WRONG = [
    [], ["Bearer"], [f"Bearer {KEY[:-1]}"], [f"Bearer {KEY}x"], [f"Bearer {KEY.lower()}"], [f"Bearer {KEY.upper()}"], [KEY],
    [f"Basic {KEY}"], [f"Bearer  {KEY}"], [f"Bearer\t{KEY}"], [f"Bearer {KEY[:20]}, {KEY}"], ["Bearer null"], ["Bearer undefined"],
    [f"Bearer {KEY}", "Bearer x"], ["Bearer x", f"Bearer {KEY}"], [f"Bearer {KEY}"] * 2,
]  # fmt: skip
PATHS = [
    "//generate", "/./generate", "/health/../generate", "/%67enerate", "/generate/", "/generate?x=/health", "/health/%2e%2e/generate",
    "/generate;/health",
    "/generate%00", "/health%2f..%2fgenerate", "http://x/generate", "/v2/health/live/../../models/m/infer", "/GENERATE",
    "/generate#/health",
]  # fmt: skip
HOSTS = ["a/health?x=", "a/health#", "@/health", "/health", "a\\health", "127.0.0.1", "a:80:80"]


_REFUSAL = b'{"type":"error","error":{"type":"authentication_error","message":"the API key is missing or wrong"}}'


@pytest.fixture(scope="module")
def locked(model: ServedModel, watch: Watch) -> Iterator[ServerUnderTest]:
    """A instance with a key."""
    with opened(model, watch, {"api_key": KEY}) as running:
        yield running


def unharmed(locked: ServerUnderTest) -> None:
    """Whoever has the key is answered as ever."""
    locked.client.headers["authorization"] = f"Bearer {KEY}"
    locked.check_unharmed()
    del locked.client.headers["authorization"]


@pytest.mark.parametrize("values", WRONG, ids=range(len(WRONG)))
def test_keys(locked: ServerUnderTest, values: list[str]) -> None:
    """No key, a part of it, it in other letters, or twice: 401 without a step, on every route that generates. Anthropic's clients need a
    body; the others get none."""
    before = locked.steps()
    for path, body, _, _ in ROUTES:
        answer = locked.client.post(path, json=body, headers=[("authorization", value) for value in values])
        assert (answer.status_code, answer.content) == (401, _REFUSAL if is_anthropic(path) else b""), path
    assert locked.steps() == before
    unharmed(locked)


@pytest.mark.parametrize("target", PATHS)
def test_paths(locked: ServerUnderTest, target: str) -> None:
    """No spelling of a path, and no Host, makes a guarded route look like one that is not."""
    before = locked.steps()
    body = b'{"inputs":"Hi"}'
    for host in HOSTS:
        with locked.served.connect() as connection:
            head = (
                f"POST {target} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            assert int(read_until(connection, b"\r\n\r\n").split(b" ")[1]) in (400, 401, 404), (target, host)
    assert locked.steps() == before
    unharmed(locked)
