"""Errors tell what is wrong with the request, and nothing of the server's inside. `instance.post` holds every error of every test here
against `instance.LEAKS`; these cases are those that try."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from tgi_router import create_app
from tgi_router.served_model import ServedModel
from tgi_router.templates import ChatTemplates

from tests.hostile.server import LEAKS, ServerUnderTest, check_error
from tests.router.scripted import ScriptedGenerator
from tests.router.serving import already, serving
from tests.router.test_limits import ROUTES, cases
from tgi_core.backend import RowFault, RowFaultKind
from tgi_core.config import Settings
from tgi_core.scheduler.types import GenerationFailed, SchedulerError
from tgi_core.wire.types import Generation

RAW = [
    b"", b"{", b"[", b"\xff\xfe", b'{"inputs": "\xff"}', b'{"inputs": "\\ud800"}', b"null", b"[]", b'"x"', b"1", b"{}" * 2,
    b'{"inputs": NaN}', b'{"inputs":' * 5000, b"[" * 100_000, b'{"inputs":"x","inputs":5}', b'{"a":1}' + b" " * 1_000_000, b"\0",
    b'{"inputs": 1' + b"0" * 4400 + b"}", b'\xef\xbb\xbf{"inputs":"x"}', b"inputs=x", b"<x/>",
]  # fmt: skip
POSTS = [route[0] for route in ROUTES]
INSIDE = (
    'File "/usr/lib/python3.11/x.py", line 1, <Tensor at 0x7f3c12345678> of /home/me/models/a.safetensors in /dev/shm/psm_12345678, '
    "socket unix:/tmp/tgi-shard-x/shard"
)
"""What a backend might say when it fails."""


def secrets(body: bytes) -> list[str]:
    """Values of the environment that the request does not hold itself."""
    return [value for value in os.environ.values() if len(value) >= 12 and value.encode() not in body]


@pytest.mark.parametrize("path", POSTS)
def test_bodies_that_cannot_be_read(instance: ServerUnderTest, path: str) -> None:
    """Bytes that are no JSON, JSON that is no body, and bodies that are too deep: short answers without a trace of a parser."""
    for body in RAW:
        answer = instance.refuses(path, body)
        assert not any(value in answer.text for value in secrets(body))


@pytest.mark.parametrize("path", POSTS)
def test_fields_that_are_wrong(instance: ServerUnderTest, path: str) -> None:
    """A sample of the walk over all fields of all routes."""
    [(_, body, model, nested)] = [route for route in ROUTES if route[0] == path]
    for case in list(cases(body, model, nested))[::9]:
        text = json.dumps(case)
        if len(text) < 100_000:
            answer = instance.post(path, text)
            assert answer.status_code == 200 or not any(value in answer.text for value in secrets(text.encode()))


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE", "X" * 100])
def test_wrong_methods_and_paths(instance: ServerUnderTest, method: str) -> None:
    """404 and 405 say what is served, and nothing of what was asked."""
    for path in ["/nope", "/generate", "/v1/chat/completions", "/..%2f..%2fetc%2fpasswd", "/%00", "/v1/" + "x" * 4000]:
        answer = instance.client.request(method, path)
        assert answer.status_code in (400, 404, 405) and not LEAKS.search(answer.text) and len(answer.content) < 1000
        assert "nope" not in answer.text and "xxx" not in answer.text and "passwd" not in answer.text


FAULTS: list[Generation | SchedulerError] = [
    GenerationFailed(INSIDE),
    Generation(1, fault=RowFault(RowFaultKind.TEXT, INSIDE)),
    Generation(1, fault=RowFault(RowFaultKind.MASK, INSIDE)),
]


@pytest.mark.parametrize("fault", FAULTS, ids=["lost", "text", "mask"])
def test_what_a_backend_says(model: ServedModel, fault: Any) -> None:
    """A backend's own words reach the client without its addresses and paths, whole or in a stream."""
    generator = ScriptedGenerator(lambda request: [fault])
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    with serving(lambda made: create_app(Settings(), model, made), already(generator)) as served:
        for path, body in [
            ("/generate", {"inputs": "Hi"}),
            ("/v1/chat/completions", chat),
            ("/v1/completions", {"prompt": "Hi"}),
        ]:
            answer = served.client.post(path, json=body)
            assert answer.status_code in (424, 503) and "line 1" in answer.text
            check_error(path, answer)
            for streamed in (path, "/generate_stream" if path == "/generate" else path):
                text = served.client.post(streamed, json={**body, "stream": True}).text
                assert "line 1" in text and not LEAKS.search(text), text


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception(strftime_now | string) }}", "{{ raise_exception(cycler | string) }}", "{{ messages + 1 }}",
        "{{ messages.x.y }}",
        "{{ raise_exception(self | string) }}", "{{ '%s' % messages.append }}{{ raise_exception(messages.append | string) }}",
        "{% include '/etc/passwd' %}", "{% import '/etc/passwd' as x %}", "{% extends 'x' %}", "{{ lipsum.__globals__ }}",
        "{{ raise_exception(('/usr/lib/python3/x.py', 1) | string) }}", "{{ namespace(a=1).b.c }}", "{{ 'x' | nope }}",
    ],
)  # fmt: skip
def test_what_a_template_says(model: ServedModel, source: str) -> None:
    """Nor do a template's errors tell of objects and files."""
    changed = ServedModel(model.name, None, model.tokenizer, ChatTemplates({"default": source}))
    generator = ScriptedGenerator(lambda request: [])
    with serving(lambda made: create_app(Settings(), changed, made), already(generator)) as served:
        answer = served.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
        assert answer.status_code == 422 and answer.json()["error_type"] in ("template_error", "validation")
        check_error("/v1/chat/completions", answer)
