"""The OpenAPI document, made from the endpoints and the types of their bodies and answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter

from tgi_core import __version__
from tgi_router.answers import ErrorResponse
from tgi_router.endpoints import UNREADABLE, Endpoint
from tgi_router.openai import Dialect
from tgi_router.openai_answers import OpenAIErrorResponse

Json = dict[str, Any]

_REF = "#/components/schemas/{model}"
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
_PARAMETER = re.compile(r"{(\w+)}")


class Types:
    """The types that a document mentions, as schemas."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        bodies = [each.body for each in endpoints if each.body is not None]
        answers = [kind for each in endpoints for kind in (each.answer, each.events) if kind is not None]
        self._keys: list[tuple[Any, str]] = []
        for kind, mode in [(kind, "validation") for kind in bodies] + [(kind, "serialization") for kind in answers]:
            if (kind, mode) not in self._keys:
                self._keys.append((kind, mode))
        for kind in (ErrorResponse, OpenAIErrorResponse):
            self._keys.append((kind, "serialization"))
        inputs: Any = [(str(place), mode, TypeAdapter(kind)) for place, (kind, mode) in enumerate(self._keys)]
        found, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REF)
        self._schemas: dict[str, Json] = {key: dict(schema) for (key, _), schema in found.items()}
        self.components: Json = definitions.get("$defs", {})

    def schema(self, kind: Any, mode: str = "serialization") -> Json:
        """The schema of a type that was collected."""
        return self._schemas[str(self._keys.index((kind, mode)))]


def make_document(endpoints: Sequence[Endpoint], dialect: Dialect) -> Json:
    """The document. Of two endpoints for one path and method the first counts."""
    types = Types(endpoints)
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {}).setdefault(endpoint.method.lower(), _operation(endpoint, types, dialect))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tgi-core",
            "description": "The API of text-generation-inference, and OpenAI's.",
            "license": {"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            "version": __version__,
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(types.components.items())),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "The server's --api-key, if it has one."}
            },
        },
    }


def _operation(endpoint: Endpoint, types: Types, dialect: Dialect) -> Json:
    operation: Json = {
        "summary": endpoint.description,
        "operationId": f"{endpoint.method.lower()}{re.sub(r'[^a-z0-9]+', '_', endpoint.path)}",
        "responses": {"200": _success(endpoint, types), **dict(_failures(endpoint, types, dialect))}
        | {str(status): {**_success(endpoint, types), "description": _DESCRIPTIONS[status]} for status in endpoint.states},
    }
    names = _PARAMETER.findall(endpoint.path)
    if names:
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if endpoint.body is not None:
        schema = types.schema(endpoint.body, "validation")
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if not endpoint.public:
        operation["security"] = [{}, {"key": []}]
    return operation


def _success(endpoint: Endpoint, types: Types) -> Json:
    content: Json = {}
    if endpoint.answer is not None:
        content["application/json"] = {"schema": types.schema(endpoint.answer)}
    if endpoint.events is not None:
        data: Json = {"type": "string", "contentMediaType": "application/json", "contentSchema": types.schema(endpoint.events)}
        if endpoint.done:
            data = {"anyOf": [{"const": "[DONE]"}, data]}
        event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
        content["text/event-stream"] = {"schema": event}
    if endpoint.text is not None:
        content[endpoint.text] = {"schema": {"type": "string"}}
    return {"description": "The answer.", **({"content": content} if content else {})}


def _failures(endpoint: Endpoint, types: Types, dialect: Dialect) -> Iterator[tuple[str, Json]]:
    openai = dialect.speaks(endpoint.path)
    errors = types.schema(OpenAIErrorResponse if openai else ErrorResponse)
    for status in sorted({*endpoint.errors, *(() if endpoint.public else (401,))}):
        content: Json = {"application/json": {"schema": errors}}
        if status in UNREADABLE and not openai:
            text = {"text/plain": {"schema": {"type": "string"}}}
            content = {**text, **content} if status == 422 else text
        yield str(status), {"description": _DESCRIPTIONS[status], **({} if status == 401 else {"content": content})}
