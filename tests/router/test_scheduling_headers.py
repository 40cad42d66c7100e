"""Headers that tell the scheduler what a client wants: priority, time limit, a cache of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.conftest import Serve
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
    request = generator.submitted.get(timeout=10)
    assert (request.priority, request.timeout_s, request.salt) == (1, 2.5, "tenant")
    assert served.client.post(path, json=BODIES[path]).status_code == 200
    request = generator.submitted.get(timeout=10)
    assert (request.priority, request.timeout_s, request.salt) == (0, None, "")


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


def test_the_operator_has_the_last_word(serve: Serve) -> None:
    """A client may shorten --request-timeout, not lengthen it."""
    served, generator = serve(request_timeout=3.0)
    for asked, given in (("9", 3.0), ("1", 1.0), (None, 3.0)):
        headers = {} if asked is None else {"x-request-timeout": asked}
        assert served.client.post("/generate", json=BODIES["/generate"], headers=headers).status_code == 200
        assert generator.submitted.get(timeout=10).timeout_s == given


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_time_is_up(serve: Serve, path: str) -> None:
    """A request that took too long is a 504 of type timeout, in the route's own form."""
    served, _ = serve(lambda request: [DeadlineExceeded("late")])
    answer = served.client.post(path, json=BODIES[path])
    assert (answer.status_code, answer.json()["error_type"]) == (504, "timeout")
