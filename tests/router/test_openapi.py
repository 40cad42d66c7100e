"""The OpenAPI document: TGI's routes and fields are in it, and answers are what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.applications import Starlette
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
    """The document has exactly the app's paths and methods, each with a summary."""
    app: Starlette = create_app(Settings(), model, ScriptedGenerator(lambda request: says()))
    routes = {(path, method.lower()) for path, methods in paths(app) for method in methods - {"HEAD"}}
    described = {(path, method) for path, operations in COMMITTED["paths"].items() for method in operations}
    assert described == routes
    assert all(operation["summary"] for operations in COMMITTED["paths"].values() for operation in operations.values())


def paths(app: Starlette) -> list[tuple[str, set[str]]]:
    """The app's routes."""
    return [(route.path, set(route.methods)) for route in app.routes]  # type: ignore[attr-defined]


def test_docs_page_loads_nothing(hello: Served) -> None:
    """The page for people names every route, and no other place."""
    page = hello.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert all(path in page.text for path in COMMITTED["paths"])
    assert "http" not in page.text.replace("http_status_code", "") and "<script" not in page.text
    assert hello.client.get("/api-doc/openapi.json").json()["paths"].keys() == COMMITTED["paths"].keys()


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
