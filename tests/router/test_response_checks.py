"""Keywords of JSON schemas that masks do not hold: clients are told, and a response that violates one is an error."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.serving import Served
from tgi_core.scheduler.types import Limits
from tgi_core.wire.types import FinishReason

SCHEMA = {"type": "array", "items": {"type": "string", "format": "password"}, "uniqueItems": True}
GOOD, BAD = '["a", "b"]', '["a", "a"]'
WARNING = "keywords checked only at the end of the response: uniqueItems; formats not checked: password"
VIOLATED = "the response violates its JSON schema: `uniqueItems` does not hold at /"
ROUTES: list[tuple[str, dict[str, Any], bool]] = [
    ("/generate", {"inputs": "Hi", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}, False),
    ("/generate_stream", {"inputs": "Hi", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}, True),
    ("/", {"inputs": "Hi", "stream": True, "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}, True),
    ("/v1/completions", {"prompt": "Hi", "guided_json": SCHEMA}, False),
    ("/v1/completions", {"prompt": "Hi", "guided_json": SCHEMA, "stream": True}, True),
]
for streams in (False, True):
    told: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "stream": streams}
    ROUTES.append(
        ("/v1/chat/completions", {**told, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, streams)
    )


def ask(served: Served, path: str, body: dict[str, Any]) -> httpx.Response:
    """The response of a server."""
    return httpx.post(f"http://{served.address[0]}:{served.address[1]}{path}", json=body, timeout=60)


@pytest.mark.parametrize(("path", "body", "streams"), ROUTES)
def test_a_valid_response_comes_with_a_warning(serve: Serve, path: str, body: dict[str, Any], streams: bool) -> None:
    """A response that passes its check is unchanged; a header says what was checked late, and what nobody checks."""
    served, _ = serve(lambda request: says('["a"', ', "b"]'))
    answer = ask(served, path, body)
    assert answer.status_code == 200 and answer.headers["x-warning"] == WARNING
    assert "violates" not in answer.text and '\\"b\\"]' in answer.text


@pytest.mark.parametrize(("path", "body", "streams"), ROUTES)
def test_a_wrong_response_is_an_error(serve: Serve, path: str, body: dict[str, Any], streams: bool) -> None:
    """A response that violates its schema is status 424, or the last event of its stream, and no result."""
    served, _ = serve(lambda request: says('["a"', ', "a"]'))
    answer = ask(served, path, body)
    assert answer.status_code == (200 if streams else 424) and VIOLATED in answer.text
    if streams:
        assert '"finish_reason":"stop"' not in answer.text and '"generated_text":"' not in answer.text


def test_both_warnings_share_a_header(serve: Serve) -> None:
    """Ignored fields and keywords are told together."""
    served, _ = serve(lambda request: says(GOOD))
    answer = ask(served, "/v1/completions", {"prompt": "Hi", "guided_json": SCHEMA, "user": "me"})
    assert answer.headers["x-warning"] == f"ignored fields: user; {WARNING}"


def test_what_is_cut_off_is_not_checked(serve: Serve) -> None:
    """A response that ends at its length is no document, and its reason says so."""
    served, _ = serve(lambda request: says(BAD, reason=FinishReason.LENGTH))
    answer = ask(served, "/v1/completions", {"prompt": "Hi", "guided_json": SCHEMA})
    assert answer.status_code == 200 and answer.json()["choices"][0]["finish_reason"] == "length"


def test_tool_calls_are_checked(serve: Serve) -> None:
    """The arguments of a call are held to their schema in the same way."""
    call = {"name": "f", "arguments": {"names": ["a", "a"]}}
    served, _ = serve(lambda request: says(json.dumps(call)), scripted={"limits": Limits(2000, 2048)})
    function = {"name": "f", "parameters": {"type": "object", "properties": {"names": SCHEMA}}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": function}]}
    answer = ask(served, "/v1/chat/completions", {**body, "tool_choice": "required"})
    assert answer.status_code == 424 and "the response violates its JSON schema" in answer.text


def test_the_limit_of_grammars_is_a_flag(serve: Serve) -> None:
    """A larger schema is accepted where the operator allows it; the error names the flag."""
    large = {"type": "object", "properties": {"a": {"enum": [f"{number:050}" for number in range(1500)]}}}
    for limit, status in ((65536, 422), (1 << 20, 200)):
        served, _ = serve(lambda request: says('{"a":1}'), max_grammar_bytes=limit)
        answer = ask(served, "/v1/completions", {"prompt": "Hi", "guided_json": large})
        assert answer.status_code == status and ("--max-grammar-bytes" in answer.text) is (status == 422)
