"""Parts of the OpenAPI document that FastAPI cannot infer: statuses, stream events, parameters and groups of operations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from tgi_router.answers import ErrorResponse
from tgi_router.anthropic_answers import AnthropicErrorResponse
from tgi_router.anthropic_errors import is_anthropic
from tgi_router.endpoints import UNREADABLE, Endpoint
from tgi_router.errors import (
    NO_MODEL,
    BodyRejected,
    Incomplete,
    ModelOverloaded,
    NoModel,
    NotServing,
    RouterError,
    ShardFailed,
    TimedOut,
    Unhealthy,
    ValidationFailed,
)
from tgi_router.openai import Dialect
from tgi_router.openai_answers import OpenAIErrorResponse
from tgi_router.scheduling_headers import MAX_SALT, PRIORITIES, PRIORITY, SALT, TIMEOUT

Json = dict[str, Any]

DESCRIPTION = """The API of Hugging Face's text-generation-inference (TGI), with routes compatible with OpenAI and Anthropic.

Streams are server-sent events. Errors have Anthropic's format on `/v1/messages`, OpenAI's on the other routes under `/v1`, and TGI's on
all others. If the server was
started with `--api-key`, every operation except the probes requires that key as a bearer token or
as `x-api-key`."""

TAGS = {
    "TGI": "TGI's native text generation.",
    "OpenAI": "OpenAI-compatible chat completions, responses, text completions and models.",
    "Anthropic": "Anthropic-compatible messages.",
    "Tokens": "Tokenization of texts and chats.",
    "Server": "Information about the served model, its limits and metrics, and this document.",
    "Probes": "Liveness and readiness probes.",
    "KServe": "KServe's Open Inference Protocol, version 2.",
    "Clouds": "Container routes for Amazon SageMaker and Google Vertex AI.",
}

_PATH_PARAMETER = re.compile(r"{(\w+)(?::path)?}")
_PATH_PARAMETERS: dict[str, Json] = {
    "model": {"description": "Name of the model. Any name is accepted: the served model responds.", "example": "demo"},
    "id": {"description": "Name of the model or adapter, as listed by `/v1/models`.", "example": "demo"},
    "version": {"description": "Version of the model. Any version is accepted: there is only one.", "example": "1"},
}
_HEADERS: dict[str, Json] = {
    PRIORITY: {
        "description": f"One of {', '.join(f'`{name}`' for name in PRIORITIES)}: requests with a higher priority start first. "
        "Default: `normal`.",
        "schema": {"type": "string", "examples": ["low"]},
    },
    TIMEOUT: {
        "description": "Time limit in seconds, > 0; when it expires, the status is 504. The server's own limit applies too.",
        "schema": {"type": "string", "examples": ["30"]},
    },
    SALT: {
        "description": f"Cache salt, at most {MAX_SALT} characters. Only requests with the same salt share prefix cache entries.",
        "schema": {"type": "string", "maxLength": MAX_SALT, "examples": ["tenant-7"]},
    },
}

_DESCRIPTIONS = {
    400: "The request body is not valid JSON, or on a route without status 422, the request failed validation.",
    401: "The API key is missing or wrong.",
    404: "There is no model or adapter with this name.",
    413: "The request body is too large.",
    415: "The `Content-Type` of the request is not JSON.",
    422: "The request failed validation.",
    424: "Generation failed on the device.",
    429: "The server is overloaded.",
    500: "Generation ended before it was complete.",
    503: "The server does not accept requests at the moment.",
    504: "The request exceeded its time limit.",
}

_FAILURES: dict[int, RouterError] = {
    404: NoModel(NO_MODEL),
    422: ValidationFailed("`inputs` cannot be empty"),
    424: ShardFailed("out of memory"),
    429: ModelOverloaded(),
    500: Incomplete(),
    503: NotServing("the model is loading"),
    504: TimedOut(),
}
_UNREAD = {
    400: BodyRejected(400, "Failed to parse the request body as JSON: EOF while parsing an object at line 1 column 10"),
    413: BodyRejected(413, "Failed to buffer the request body: length limit exceeded"),
    415: BodyRejected(415, "Expected request with `Content-Type: application/json`"),
    422: BodyRejected(422, "Failed to deserialize the JSON body into the target type: missing field `inputs`"),
}
"""Example errors by status; these are of bodies that cannot be read, those above of all other failures."""


_REFERENCE = "#/components/schemas/{model}"


def components(endpoints: Iterable[Endpoint]) -> Json:
    """Return the schemas of all bodies, responses and events, by name. FastAPI's own schemas lack the events, and their bounds are
    floating-point numbers, which cannot distinguish 2^64 - 1 from 2^64."""
    kinds: list[tuple[Any, str]] = [
        (each, "serialization") for each in (ErrorResponse, OpenAIErrorResponse, AnthropicErrorResponse)
    ]
    for each in endpoints:
        described = (each.body, "validation"), (each.answer, "serialization"), (each.events, "serialization")
        kinds += [item for item in described if item[0] is not None and item not in kinds]
    inputs: Any = [(str(place), mode, TypeAdapter(kind)) for place, (kind, mode) in enumerate(kinds)]
    found: Json = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)[1]["$defs"]
    return dict(sorted(found.items()))


@cache
def _schema(kind: Any) -> Json:
    """Return the schema of a response or an event, with references to the components."""
    inputs: Any = [("it", "serialization", TypeAdapter(kind))]
    return dict(TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)[0]["it", "serialization"])


def parameters(endpoint: Endpoint) -> list[Json]:
    """Return the path parameters of an operation and, where it generates, the scheduling headers."""
    string = {"type": "string"}
    names = _PATH_PARAMETER.findall(endpoint.path) if endpoint.documented else []
    found = [{"name": name, "in": "path", "required": True, **_PATH_PARAMETERS[name], "schema": string} for name in names]
    if endpoint.body is not None and 503 in endpoint.errors:
        found += [{"name": name, "in": "header", **header} for name, header in _HEADERS.items()]
    return found


def responses(endpoint: Endpoint, dialect: Dialect) -> dict[int | str, Json]:
    """Return all responses of an operation except a successful JSON response, which FastAPI documents."""
    found: dict[int | str, Json] = {}
    if endpoint.events is not None:
        found[200] = {"content": {"text/event-stream": {"schema": _event(endpoint)}}}
    for status in endpoint.states:
        content = {"application/json": {"schema": _schema(endpoint.answer)}}
        found[status] = {"description": _DESCRIPTIONS[status], "content": content}
    for status in sorted(endpoint.errors):
        found[status] = {"description": _DESCRIPTIONS[status], "content": dict(_error(endpoint, status, dialect))}
    if not endpoint.public:
        found[401] = {"description": _DESCRIPTIONS[401]}
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _event(endpoint: Endpoint) -> Json:
    """Return the schema of one event: OpenAPI 3.1 cannot describe a stream."""
    data: Json = {"type": "string", "contentMediaType": "application/json", "contentSchema": _schema(endpoint.events)}
    if endpoint.done:
        data = {"anyOf": [{"const": "[DONE]"}, data]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _error(endpoint: Endpoint, status: int, dialect: Dialect) -> Iterator[tuple[str, Json]]:
    """Yield the error content by media type: plain text for unreadable bodies, except under /v1."""
    model: type[BaseModel] = ErrorResponse
    if dialect.speaks(endpoint.path):
        model = AnthropicErrorResponse if is_anthropic(endpoint.path) else OpenAIErrorResponse
    elif status in UNREADABLE:
        yield "text/plain", {"schema": {"type": "string"}, "example": str(_UNREAD[status])}
        if status not in _FAILURES:
            return
    error = Unhealthy() if endpoint.public else _FAILURES.get(status) or _UNREAD[status]
    example = json.loads(bytes(dialect.respond(endpoint.path, error).body))
    yield "application/json", {"schema": _schema(model), "example": example}
