"""The OpenAPI document: TGI's routes and fields are in it, and answers are what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from tgi_router import ServedModel, answers, create_app, openai_answers

from scripts import openapi_document
from tests.router.conftest import Serve
from tests.router.scripted import ScriptedGenerator, detailed, says
from tests.router.serving import Served
from tests.router.surface import surface
from tests.router.test_openai import TOOLS, chunks
from tgi_core.config import Settings
from tgi_core.scheduler.types import Limits

ROOMY = Limits(2000, 2048)
TGI = json.loads(Path(__file__).with_name("tgi_surface.json").read_text())
COMMITTED = json.loads(openapi_document.TARGET.read_text())
OPERATIONS = [(path, method, operation) for path, each in COMMITTED["paths"].items() for method, operation in each.items()]


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    """For a schema of the document."""
    return Draft202012Validator({**schema, "components": COMMITTED["components"]})


def test_committed_document_is_fresh() -> None:
    """docs/openapi.json is what a server with default settings says."""
    assert openapi_document.text() == openapi_document.TARGET.read_text(), "run: python scripts/openapi_document.py"


@pytest.mark.parametrize("route", sorted(TGI))
def test_tgi_surface(route: str) -> None:
    """Every route of TGI's document is there, with every field of its body and its answer.

    Left out of the table: parts of past tool calls, which are taken as they come; parts of a grammar's value; `tool_call_id` of
    answers, which TGI never sends; and TGI's own mistake about /v1/models.
    """
    ours = surface(COMMITTED)[route]
    for part in ("body", "answer"):
        assert set(TGI[route][part].split()) <= set(ours[part])


def test_all_routes_are_described(model: ServedModel) -> None:
    """The document has exactly the app's paths and methods but for the page's files; each has a summary, a description and a group."""
    app = create_app(Settings(), model, ScriptedGenerator(lambda request: says()))
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) == len(app.routes)
    served = {
        (route.path_format, method.lower()) for route in routes for method in route.methods or () if route.include_in_schema
    }
    assert {(path, method) for path, method, _ in OPERATIONS} == served
    assert {route.path for route in routes if not route.include_in_schema} == {"/docs/", "/docs/{asset}", "/ui/", "/ui/{asset}"}
    groups = {tag["name"] for tag in COMMITTED["tags"]}
    for path, method, operation in OPERATIONS:
        assert operation["summary"] and operation["description"] and set(operation["tags"]) <= groups, (method, path)
        assert len(operation["tags"]) == 1
        for parameter in operation.get("parameters", ()):
            assert parameter["description"] and ("example" in parameter or parameter["schema"]["examples"]), (method, path)


def test_every_field_is_described() -> None:
    """So has every field of every body and answer, which also has an example that its schema allows; numbers have their bounds."""
    for name, schema in COMMITTED["components"]["schemas"].items():
        assert schema["description"]
        for field, told in schema["properties"].items():
            assert told["description"], (name, field)
            assert told["examples"], (name, field)
            for example in told["examples"]:
                validator({"$ref": f"#/components/schemas/{name}/properties/{field}"}).validate(example)


def test_examples_of_bodies_and_errors_are_valid() -> None:
    """Every POST has examples of its body, every status of an error has one of its answer: all as their schemas want them."""
    for path, method, operation in OPERATIONS:
        if method == "post":
            content = operation["requestBody"]["content"]["application/json"]
            assert content["examples"], path
            for example in content["examples"].values():
                validator(content["schema"]).validate(example["value"])
        for status, response in operation["responses"].items():
            for kind, content in response.get("content", {}).items():
                assert int(status) < 400 or "example" in content or operation["tags"] == ["Probes"], (path, status, kind)
                if "example" in content:
                    validator(content["schema"]).validate(content["example"])


def test_bounds_are_those_of_the_server(serve: Serve) -> None:
    """A parameter at a bound of the document is taken or not, as the document says; large whole numbers are told to the last digit."""
    served, _ = serve()
    fields = COMMITTED["components"]["schemas"]["Parameters"]["properties"]
    assert fields["seed"]["anyOf"][0]["maximum"] == 2**64 - 1
    for name, told in fields.items():
        kind = told["anyOf"][0] if "anyOf" in told else told
        for keyword, least in (("minimum", -1), ("exclusiveMinimum", 0), ("maximum", 1), ("exclusiveMaximum", 0)):
            if keyword in kind:
                beyond = kind[keyword] + least if abs(kind[keyword]) < 2**53 else kind[keyword] * 2
                answer = served.client.post("/generate", json={"inputs": "Hi", "parameters": {name: beyond}})
                assert answer.status_code == 422, (name, keyword, answer.text)


def test_documents_addresses(hello: Served) -> None:
    """The document is at TGI's address and at FastAPI's, and is the file of the repository."""
    for path in ("/api-doc/openapi.json", "/openapi.json"):
        answer = hello.client.get(path)
        assert answer.headers["content-type"] == "application/json" and answer.json() == COMMITTED


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_docs_page_is_of_this_server(hello: Served, path: str) -> None:
    """The page for people and all that it names come from the server, under a policy that lets nothing else in."""
    page = hello.client.get(path)
    assert page.headers["content-type"].startswith("text/html") and "http" not in page.text
    named = re.findall(r'(?:src|href|data-document)="([^"]+)"', page.text)
    assert len(named) == 6
    for each in named:
        answer = hello.client.get(urljoin(str(page.url), each))
        assert answer.status_code == 200 and answer.content, each
    for answer in (page, hello.client.get("/docs/page.js"), hello.client.get("/docs/swagger-ui-bundle.js")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert "<script>" not in page.text and "style=" not in page.text


@pytest.mark.parametrize("name", ["redoc.standalone.js", "..%2fcore.py", "%2e%2e/core.py", "nothing"])
def test_docs_page_has_no_other_files(hello: Served, name: str) -> None:
    """Of the package that has the files only those are served that the page needs."""
    assert hello.client.get(f"/docs/{name}").status_code == 404


@pytest.mark.parametrize(("path", "allowed"), [("/", "GET, HEAD, POST"), ("/generate", "POST"), ("/info", "GET, HEAD")])
def test_other_methods(hello: Served, path: str, allowed: str) -> None:
    """A method that a path has not is told all that it has; HEAD is answered as GET, without a body."""
    answer = hello.client.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    head = hello.client.head(path)
    assert head.status_code == (200 if "HEAD" in allowed else 405) and not head.content


NATIVE = {"details": True, "top_n_tokens": 2, "decoder_input_details": True}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
ANSWERS: list[tuple[str, dict[str, Any] | None, Any]] = [
    ("/generate", {"inputs": "Hi", "parameters": NATIVE}, answers.GenerateResponse),
    ("/generate", {"inputs": "Hi", "parameters": {**NATIVE, "best_of": 2, "do_sample": True}}, answers.GenerateResponse),
    ("/", {"inputs": "Hi"}, list[answers.GenerateResponse]),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2, "n": 2}, openai_answers.ChatCompletion),
    ("/v1/chat/completions", {**CHAT, "tools": TOOLS}, openai_answers.ChatCompletion),
    ("/v1/completions", {"prompt": ["a", "b"]}, openai_answers.CompletionFinal),
    ("/invocations", {"prompt": "a"}, openai_answers.CompletionFinal),
    ("/vertex", {"instances": [{"inputs": "a"}]}, answers.VertexResponse),
    ("/tokenize", {"inputs": "a"}, list[answers.SimpleToken]),
    ("/chat_tokenize", CHAT, answers.ChatTokenizeResponse),
    ("/info", None, answers.Info),
    ("/v1/models", None, openai_answers.ModelsInfo),
    ("/v2", None, answers.Metadata),
    ("/v2/models/m", None, answers.Metadata),
    ("/v2/health/live", None, answers.Live),
    ("/v2/models/m/infer", {"inputs": [{"name": "a", "data": [72]}], "outputs": [{"name": "b"}]}, answers.InferResponse),
]


@pytest.mark.parametrize(("path", "body", "kind"), ANSWERS)
def test_answers(serve: Serve, path: str, body: dict[str, Any] | None, kind: Any) -> None:
    """Answers have the fields that the document lists, and no others."""
    served, _ = serve(lambda request: detailed(), enable_prefill_logprobs=True, scripted={"limits": ROOMY})
    answer = served.client.get(path) if body is None else served.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    TypeAdapter(kind).validate_json(answer.content)


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/generate_stream", {"inputs": "Hi", "parameters": {"details": True, "top_n_tokens": 2}}, answers.StreamResponse),
        (
            "/v1/chat/completions",
            {**CHAT, "logprobs": True, "stream_options": {"include_usage": True}},
            openai_answers.ChatCompletionChunk,
        ),
        ("/v1/completions", {"prompt": "a"}, openai_answers.Chunk | openai_answers.CompletionFinal),
    ],
)
def test_events(serve: Serve, path: str, body: dict[str, Any], kind: Any) -> None:
    """So have the events of streams."""
    served, _ = serve(lambda request: detailed())
    text = served.client.post(path, json={**body, "stream": True}).text
    events = chunks(text) if path.startswith("/v1") else [json.loads(event[6:]) for event in text.split("\n\n")[:-1]]
    assert events
    for each in events:
        TypeAdapter(kind).validate_python(each)


def test_errors(hello: Served) -> None:
    """And errors, TGI's and OpenAI's."""
    TypeAdapter(answers.ErrorResponse).validate_json(hello.client.post("/generate", json={"inputs": ""}).content)
    TypeAdapter(openai_answers.OpenAIErrorResponse).validate_json(
        hello.client.post("/v1/completions", json={"prompt": ""}).content
    )
    TypeAdapter(openai_answers.OpenAIErrorResponse).validate_json(hello.client.post("/v1/completions", json={}).content)
