"""What the OpenAPI document says that FastAPI cannot know: statuses, events of streams, parameters and groups of operations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from tgi_router.answers import ErrorResponse
from tgi_router.endpoints import UNREADABLE, Endpoint
from tgi_router.errors import (
    BodyRejected,
    Incomplete,
    ModelOverloaded,
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

DESCRIPTION = """The API of Hugging Face's text-generation-inference, and OpenAI's.

Streams are server-sent events. Errors of the routes under `/v1` have OpenAI's form, all others TGI's. If the server was started with
`--api-key`, every operation but the probes needs it as a bearer token."""

TAGS = {
    "TGI": "TGI's own routes for generation.",
    "OpenAI": "Chat and completions as OpenAI's clients ask for them.",
    "Tokens": "What a text or a conversation becomes before the model reads it.",
    "Server": "The model that is served, its limits, metrics and this document.",
    "Probes": "Whether to keep the process, and whether to send it requests.",
    "KServe": "KServe's inference protocol, version 2.",
    "Clouds": "The routes by which Amazon SageMaker and Google Vertex AI call a container.",
}

_PATH_PARAMETER = re.compile(r"{(\w+)}")
_PATH_PARAMETERS: dict[str, Json] = {
    "model": {"description": "Any name: the model that is served answers.", "example": "demo"},
    "version": {"description": "Any version: there is one.", "example": "1"},
}
_HEADERS: dict[str, Json] = {
    PRIORITY: {
        "description": f"One of {', '.join(f'`{name}`' for name in PRIORITIES)}: requests of a higher priority start first. "
        "Default: `normal`.",
        "schema": {"type": "string", "examples": ["low"]},
    },
    TIMEOUT: {
        "description": "How many seconds the answer may take, > 0; the status is 504 after that. The operator's limit holds as well.",
        "schema": {"type": "string", "examples": ["30"]},
    },
    SALT: {
        "description": f"At most {MAX_SALT} characters. Only requests with the same salt share parts of the prefix cache.",
        "schema": {"type": "string", "maxLength": MAX_SALT, "examples": ["tenant-7"]},
    },
}

_DESCRIPTIONS = {
    400: "The body is not JSON.",
    401: "The api key is missing or wrong.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "The body, or what it asks for, is not valid.",
    424: "The device failed.",
    429: "The server is full.",
    500: "The answer is not complete.",
    503: "The server does not answer requests now.",
    504: "The request took longer than allowed.",
}

_FAILURES: dict[int, RouterError] = {
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
"""An error for each status, as an example; the second are of bodies that cannot be read."""


_REFERENCE = "#/components/schemas/{model}"


def components(endpoints: Iterable[Endpoint]) -> Json:
    """The schemas of all bodies, answers and events, by name. FastAPI's own lack those of events, and what went through FastAPI has
    floating-point numbers for bounds, which cannot tell 2^64 - 1 from 2^64."""
    kinds: list[tuple[Any, str]] = [(ErrorResponse, "serialization"), (OpenAIErrorResponse, "serialization")]
    for each in endpoints:
        described = (each.body, "validation"), (each.answer, "serialization"), (each.events, "serialization")
        kinds += [item for item in described if item[0] is not None and item not in kinds]
    inputs: Any = [(str(place), mode, TypeAdapter(kind)) for place, (kind, mode) in enumerate(kinds)]
    found: Json = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)[1]["$defs"]
    return dict(sorted(found.items()))


@cache
def _schema(kind: Any) -> Json:
    """What an answer is or holds, in terms of the components."""
    inputs: Any = [("it", "serialization", TypeAdapter(kind))]
    return dict(TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)[0]["it", "serialization"])


def parameters(endpoint: Endpoint) -> list[Json]:
    """Those of its path, and of routes that generate the headers that they heed."""
    string = {"type": "string"}
    names = _PATH_PARAMETER.findall(endpoint.path) if endpoint.documented else []
    found = [{"name": name, "in": "path", "required": True, **_PATH_PARAMETERS[name], "schema": string} for name in names]
    if endpoint.body is not None and 503 in endpoint.errors:
        found += [{"name": name, "in": "header", **header} for name, header in _HEADERS.items()]
    return found


def responses(endpoint: Endpoint, dialect: Dialect) -> dict[int | str, Json]:
    """All that an operation may answer, but for a JSON answer that is as it should be."""
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
    """OpenAPI 3.1 has no words for a stream; this is one event of it."""
    data: Json = {"type": "string", "contentMediaType": "application/json", "contentSchema": _schema(endpoint.events)}
    if endpoint.done:
        data = {"anyOf": [{"const": "[DONE]"}, data]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _error(endpoint: Endpoint, status: int, dialect: Dialect) -> Iterator[tuple[str, Json]]:
    """Bodies that cannot be read are told in plain text, except to OpenAI's clients."""
    openai = dialect.speaks(endpoint.path)
    if status in UNREADABLE and not openai:
        yield "text/plain", {"schema": {"type": "string"}, "example": str(_UNREAD[status])}
        if status not in _FAILURES:
            return
    error = Unhealthy() if endpoint.public else _FAILURES.get(status) or _UNREAD[status]
    example = json.loads(bytes(dialect.respond(endpoint.path, error).body))
    yield "application/json", {"schema": _schema(OpenAIErrorResponse if openai else ErrorResponse), "example": example}
