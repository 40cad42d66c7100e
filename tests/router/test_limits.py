"""Every field of every route, below, at and beyond what it may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from tgi_router import (
    ServedModel,
    answers,
    anthropic_answers,
    anthropic_bodies,
    bodies,
    cloud_bodies,
    create_app,
    openai_answers,
    openai_bodies,
    responses_bodies,
)

from tests.router.serving import Served, serving
from tests.router.shard import Shard
from tgi_core.config import Settings

MEBI = "no end " * (2**20 // 7)
COMMON: list[Any] = [
    None, True, -1, 0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64, 10**400,
    -0.0, 0.5, 1.0, 1e-46, 1e38, 1e39, 1e308, float("nan"), float("inf"), -2.0, 2.1, "", "x", [], {}, [None], {"a": None},
]  # fmt: skip
LONG: list[Any] = [MEBI, ["x"] * 100_000, [MEBI], {str(number): 1 for number in range(5000)}]
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
NATIVE = {"inputs": "Hi", "parameters": {"max_new_tokens": 1}}
INFER = {"inputs": [{"name": "a", "data": [72]}], "outputs": [{"name": "b"}], "parameters": {"max_new_tokens": 1}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ROUTES: list[tuple[str, dict[str, Any], type[BaseModel], dict[str, type[BaseModel]]]] = [
    ("/", NATIVE, bodies.CompatGenerateBody, {"parameters": bodies.Parameters}),
    ("/generate", NATIVE, bodies.GenerateBody, {"parameters": bodies.Parameters, "parameters.grammar": bodies.GrammarShape}),
    ("/generate_stream", NATIVE, bodies.GenerateBody, {"parameters": bodies.Parameters}),
    ("/tokenize", NATIVE, bodies.GenerateBody, {}),
    (
        "/v1/chat/completions",
        CHAT,
        openai_bodies.ChatBody,
        {
            "messages.0": openai_bodies.Message,
            "tools.0": openai_bodies.Tool,
            "tools.0.function": openai_bodies.FunctionDefinition,
            "stream_options": openai_bodies.StreamOptions,
            "response_format": bodies.GrammarShape,
            "tool_choice": openai_bodies.NamedToolChoice,
        },
    ),
    ("/chat_tokenize", CHAT, openai_bodies.ChatBody, {}),
    (
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 1},
        openai_bodies.CompletionBody,
        {"stream_options": openai_bodies.StreamOptions},
    ),
    (
        "/v1/messages",
        {**CHAT, "model": "tgi", "tools": [{"name": "f"}], "tool_choice": {"type": "none"}},
        anthropic_bodies.MessagesBody,
        {
            "messages.0": anthropic_bodies.MessageParam,
            "tools.0": anthropic_bodies.ToolParam,
            "tool_choice": anthropic_bodies.ToolChoiceParam,
            "thinking": anthropic_bodies.ThinkingParam,
            "output_config": anthropic_bodies.OutputConfig,
        },
    ),
    (
        "/v1/responses",
        {"input": CHAT["messages"], "max_output_tokens": 1, "tools": [{"type": "function", "name": "f"}], "tool_choice": "none"},
        responses_bodies.ResponsesBody,
        {
            "input.0": responses_bodies.InputItem,
            "tools.0": responses_bodies.ToolParam,
            "text": responses_bodies.TextConfig,
            "text.format": responses_bodies.TextFormat,
            "reasoning": responses_bodies.ReasoningConfig,
        },
    ),
    ("/invocations", {"prompt": "Hi", "max_tokens": 1}, openai_bodies.CompletionBody, {}),
    ("/vertex", {"instances": [NATIVE]}, cloud_bodies.VertexBody, {"instances.0": bodies.GenerateBody}),
    (
        "/v2/models/m/infer",
        INFER,
        cloud_bodies.InferBody,
        {"inputs.0": cloud_bodies.InferInput, "outputs.0": cloud_bodies.InferOutputName},
    ),
]
FILLED = {
    "tools": [TOOL], "stream_options": {}, "response_format": {"type": "json_object"}, "grammar": {"type": "regex", "value": "a"},
    "tool_choice": {"function": {"name": "f"}}, "thinking": {"type": "enabled"}, "output_config": {}, "text": {}, "reasoning": {},
    "format": {"type": "json_object"},
}  # fmt: skip
TEXT = ("Expected request with", "Failed to parse", "Failed to deserialize", "Failed to buffer", "data did not match")


def cases(body: dict[str, Any], model: type[BaseModel], nested: dict[str, type[BaseModel]]) -> Iterator[dict[str, Any]]:
    """The body with each of its fields as everything that it might be."""
    for prefix, fields in [("", model), *nested.items()]:
        top = prefix in ("", "parameters")  # deeper fields have fewer bounds
        for name in fields.model_fields:
            for value in [*COMMON, *LONG] if top else COMMON[::3]:
                yield placed(body, [*prefix.split("."), name] if prefix else [name], value)


def placed(body: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """A copy of the body with a value at a path; what must be around it is filled in."""
    copy = json.loads(json.dumps(body))
    here: Any = copy
    for place, key in enumerate(path[:-1]):
        if isinstance(here, dict) and key not in here:
            here[key] = json.loads(json.dumps(FILLED[key]))
        here = here[int(key) if isinstance(here, list) else key]
        assert isinstance(here, dict | list), path[: place + 1]
    here[path[-1]] = value
    return copy


@pytest.fixture(scope="module")
def shard(model: ServedModel) -> Shard:
    """A device that counts its steps."""
    return Shard(model.tokenizer)


@pytest.fixture(scope="module")
def served(model: ServedModel, shard: Shard) -> Iterator[Served]:
    """A server whose answers are short."""
    settings = Settings(max_total_tokens=64, max_concurrent_requests=8)
    with serving(lambda generator: create_app(settings, model, generator), shard.opening) as running:
        yield running


def error_of(path: str) -> type[BaseModel]:
    """The type of a route's errors."""
    if path.startswith("/v1/messages"):
        return anthropic_answers.AnthropicErrorResponse
    return openai_answers.OpenAIErrorResponse if path.startswith("/v1/") else answers.ErrorResponse


def send(served: Served, path: str, body: dict[str, Any]) -> int:
    """Send it, check the shape of the answer, and return its status."""
    answer = served.client.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
    if answer.status_code == 200:
        return 200
    assert answer.status_code in (400, 413, 422, 429), (answer.status_code, answer.text)
    if answer.headers["content-type"] == "application/json":
        TypeAdapter(error_of(path)).validate_json(answer.content)
    else:
        assert not path.startswith("/v1/") and answer.text.startswith(TEXT)
    assert len(answer.content) < 2000, "an error does not repeat what the client wrote"
    return answer.status_code


@pytest.mark.parametrize(("path", "body", "model_of_body", "nested"), ROUTES, ids=[route[0] for route in ROUTES])
def test_walk(
    served: Served,
    shard: Shard,
    path: str,
    body: dict[str, Any],
    model_of_body: type[BaseModel],
    nested: dict[str, type[BaseModel]],
) -> None:
    """Whatever a field holds, the answer is 200 or a refusal of the documented shape; refused requests cost no step of the device,
    and afterwards the server is as it was."""
    assert shard.loop is not None
    assert send(served, path, body) == 200
    refused = [case for case in cases(body, model_of_body, nested) if send(served, path, case) != 200]
    before = len(shard.steps)
    for case in refused[:: max(len(refused) // 50, 1)]:
        assert send(served, path, case) != 200
    assert len(shard.steps) == before
    load = shard.loop.snapshot()
    assert (load.running, load.queued, load.blocks_free) == (0, 0, load.blocks_total)
    assert served.client.get("/health").status_code == 200
