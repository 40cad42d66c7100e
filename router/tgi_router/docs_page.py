"""GET /api-doc/openapi.json, and /docs: the same for people, on one page that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tgi_router.endpoints import Endpoint
from tgi_router.json_text import dumps
from tgi_router.openai import Dialect
from tgi_router.openapi import make_document

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, th { font-family: ui-monospace, monospace }
h2 { margin-top: 2.5rem; font-size: 1.1rem }
td, th { text-align: left; padding: 0 1rem 0 0; vertical-align: top }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } a { color: #8cf } }
"""


class DocumentRoutes:
    """Handlers that describe the others, and themselves."""

    def __init__(self, endpoints: Sequence[Endpoint], dialect: Dialect) -> None:
        document = make_document([*endpoints, *self.endpoints()], dialect)
        self._json, self._page = dumps(document), _page(document)

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("GET", "/docs", self.docs, text="text/html"),
            Endpoint("GET", "/api-doc/openapi.json", self.openapi, answer=dict[str, Any]),
        ]

    async def docs(self, request: Request) -> Response:
        """All routes, for people."""
        return HTMLResponse(self._page)

    async def openapi(self, request: Request) -> Response:
        """All routes, for programs."""
        return Response(self._json, media_type="application/json")


def _page(document: dict[str, Any]) -> str:
    title = f"{document['info']['title']} {document['info']['version']}"
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>',
        f'<h1>{escape(title)}</h1><p>{escape(document["info"]["description"])} <a href="api-doc/openapi.json">OpenAPI document</a></p>',
    ]
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>")
            body = operation.get("requestBody")
            if body is not None:
                parts += _fields(body["content"]["application/json"]["schema"], schemas)
    return "\n".join(parts)


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    """A table per kind of body."""
    for each in schema.get("anyOf", [schema]):
        found = schemas[each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        required = found.get("required", ())
        rows = [_row(name, field, name in required) for name, field in found.get("properties", {}).items()]
        yield f"<table>{''.join(rows)}</table>"


def _row(name: str, field: dict[str, Any], required: bool) -> str:
    return f"<tr><th>{escape(name)}</th><td>{escape(_kind(field))}</td><td>{'required' if required else ''}</td></tr>"


def _kind(field: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(each) for each in field["anyOf"]))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any"))
