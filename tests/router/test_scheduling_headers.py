"""Headers that tell the scheduler what a client wants: priority, time limit, a cache of its own."""

from __future__ import annotations

from typing import Any

import pytest
from tgi_router import app

from tests.router.conftest import Serve
from tests.router.test_token_span import Counting
from tgi_core.scheduler.types import DeadlineExceeded

BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"inputs": "Hi"},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/vertex": {"instances": [{"inputs": "Hi"}]},
}


@pytest.mark.parametrize("path", BODIES)
def test_every_route_that_generates_takes_them(serve: Serve, path: str) -> None:
    """The headers reach the scheduler, whatever the route; without them there is nothing special about a request."""
    served, generator = serve()
    headers = {"x-request-priority": "high", "x-request-timeout": "2.5", "x-cache-salt": "tenant"}
    assert served.client.post(path, json=BODIES[path], headers=headers).status_code == 200
    asked = generator.submitted.get(timeout=10).scheduling
    assert (asked.priority, asked.timeout_s, asked.salt) == (1, 2.5, "tenant")
    assert served.client.post(path, json=BODIES[path]).status_code == 200
    asked = generator.submitted.get(timeout=10).scheduling
    assert (asked.priority, asked.timeout_s, asked.salt) == (0, None, "")


@pytest.mark.parametrize(
    ("header", "value", "text"),
    [
        ("x-request-priority", "urgent", "must be one of low, normal, high"),
        ("x-request-timeout", "soon", "must be a number of seconds > 0"),
        ("x-request-timeout", "-1", "must be a number of seconds > 0"),
        ("x-request-timeout", "nan", "must be a number of seconds > 0"),
        ("x-cache-salt", "s" * 257, "must have at most 256 characters. Given: 257"),
    ],
)
def test_what_they_cannot_be(serve: Serve, header: str, value: str, text: str) -> None:
    """A header that says nothing sensible is a 422 that names it, and nothing is submitted."""
    served, generator = serve()
    answer = served.client.post("/generate", json=BODIES["/generate"], headers={header: value})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
    assert answer.json()["error"] == f"Input validation error: header `{header}` {text}"
    assert generator.submitted.empty()


LONG = "no end " * 2**16
LONG_BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"inputs": LONG, "parameters": {"truncate": 9}},
    "/generate_stream": {"inputs": LONG, "parameters": {"truncate": 9}},
    "/v1/completions": {"prompt": LONG},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]},
    "/vertex": {"instances": [{"inputs": LONG, "parameters": {"truncate": 9}}]},
    "/v2/models/m/infer": {
        "inputs": [{"name": "a", "data": list(LONG[:4096].encode())}],
        "outputs": [{"name": "b"}],
        "parameters": {"truncate": 9},
    },
}


@pytest.mark.parametrize("path", LONG_BODIES)
def test_they_are_checked_before_the_prompt_is_tokenized(serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """A request whose headers are wrong is refused at once, however long its prompt is."""
    monkeypatch.setattr(app, "Tokenizing", Counting)
    monkeypatch.setattr(Counting, "calls", 0)
    served, generator = serve(changes={"token_span": None})
    answer = served.client.post(path, json=LONG_BODIES[path], headers={"x-request-timeout": "soon"})
    assert "header `x-request-timeout` must be a number of seconds > 0" in answer.text
    assert answer.status_code == (200 if path == "/generate_stream" else 422), "a native stream tells its errors in events"
    assert Counting.calls == 0 and generator.submitted.empty()


def test_the_operator_has_the_last_word(serve: Serve) -> None:
    """A client may shorten --request-timeout, not lengthen it."""
    served, generator = serve(request_timeout=3.0)
    for asked, given in (("9", 3.0), ("1", 1.0), (None, 3.0)):
        headers = {} if asked is None else {"x-request-timeout": asked}
        assert served.client.post("/generate", json=BODIES["/generate"], headers=headers).status_code == 200
        assert generator.submitted.get(timeout=10).scheduling.timeout_s == given


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_time_is_up(serve: Serve, path: str) -> None:
    """A request that took too long is a 504 of type timeout, in the route's own form."""
    served, _ = serve(lambda request: [DeadlineExceeded("late")])
    answer = served.client.post(path, json=BODIES[path])
    assert (answer.status_code, answer.json()["error_type"]) == (504, "timeout")
