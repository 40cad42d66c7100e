"""FastAPI routes for endpoints: FastAPI generates the OpenAPI document, the handlers respond.

FastAPI would parse and validate a body before the handler runs, without the limits and with other error messages than TGI's, and it
spends two exit stacks and a walk through its dependencies on every request. So it gets a function that has the operation's
parameters but is never called, and requests are routed as in Starlette: `tgi_router.extract` reads their bodies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter, Signature
from typing import Annotated, Any

from fastapi import Body, FastAPI, Security
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Match, Route, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from tgi_core import __version__
from tgi_router.endpoints import Endpoint, Gate, distinct, methods_by_path, serving
from tgi_router.openai import Dialect
from tgi_router.openapi import DESCRIPTION, TAGS, components, parameters, responses

_KEY = HTTPBearer(scheme_name="key", description="The server's `--api-key`, if it has one.", auto_error=False)
_HEADER_KEY = APIKeyHeader(
    name="x-api-key", scheme_name="x-api-key", description="The same key, as Anthropic's clients send it.", auto_error=False
)
_TEXT: dict[str | None, type[Response]] = {"text/plain": PlainTextResponse, "text/html": HTMLResponse}


class Api(FastAPI):
    """FastAPI without its own documentation pages, which `tgi_router.docs_page` replaces. `endpoints` are those of its routes."""

    def __init__(self, endpoints: Iterable[Endpoint], **settings: Any) -> None:
        super().__init__(
            title="tgi-core",
            description=DESCRIPTION,
            version=__version__,
            license_info={"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
            openapi_url=None,
            # disables FastAPI's own, whatever the environment says: `tgi_router.request_log` has the server's
            telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
            **settings,
        )
        self._endpoints = tuple(endpoints)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, created on first use."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"]["schemas"] = components(self._endpoints)
            for route in self.routes:
                if isinstance(route, Operation) and route.include_in_schema:
                    route.restore(document)
            self.openapi_schema = document
        return self.openapi_schema

    def build_middleware_stack(self) -> ASGIApp:
        """Build Starlette's stack. FastAPI's has further layers for dependencies, uploads and telemetry, which are not used
        here."""
        return Starlette.build_middleware_stack(self)


class Operation(APIRoute):
    """A route that serves one endpoint. `allowed` are all methods of its path."""

    def __init__(self, endpoint: Endpoint, allowed: frozenset[str], gate: Gate, dialect: Dialect) -> None:
        super().__init__(
            endpoint.path,
            _described(endpoint),
            methods=[endpoint.method],
            operation_id=f"{endpoint.method.lower()}{re.sub(r'[^a-z0-9]+', '_', endpoint.shown_path)}",
            tags=[endpoint.tag],
            summary=endpoint.summary,
            description=endpoint.description,
            response_model=endpoint.answer,
            response_class=_response_class(endpoint),
            response_description="The answer.",
            responses=responses(endpoint, dialect),
            openapi_extra=_extra(endpoint),
            include_in_schema=endpoint.documented,
        )
        self._served = frozenset({"GET", "HEAD"}) if endpoint.method == "GET" else frozenset({endpoint.method})
        self._shown_path = endpoint.shown_path
        self._method = endpoint.method.lower()
        self._allowed = allowed
        self._fixed = not self.param_convertors
        self.app = request_response(serving(endpoint, gate))

    def restore(self, document: dict[str, Any]) -> None:
        """Restore the nulls in the examples of the operation's errors, which FastAPI drops, and drop the 422 that it adds."""
        found = document["paths"][self._shown_path][self._method]["responses"]
        found.pop("422", None)
        found |= {str(status): response for status, response in self.responses.items() if status != 200}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as Starlette does, with HEAD as a variant of GET."""
        if self._fixed and not scope.get("root_path") and scope["path"] != self.path:
            return Match.NONE, {}  # avoids matching the regular expression of every other route
        match, found = Route.matches(self, scope)
        if match is Match.PARTIAL and scope["method"] in self._served:
            match = Match.FULL
        return match, found

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or report the allowed methods. Raises HTTPException."""
        if scope["method"] not in self._served:
            raise HTTPException(status_code=405, headers={"Allow": ", ".join(sorted(self._allowed))})
        await self.app(scope, receive, send)


def make_operations(endpoints: Iterable[Endpoint], gate: Gate, dialect: Dialect) -> list[Operation]:
    """Create one route per path and method. The first endpoint for both takes precedence."""
    kept = distinct(endpoints)
    allowed = methods_by_path(kept)
    return [Operation(each, allowed[each.path], gate, dialect) for each in kept]


def _response_class(endpoint: Endpoint) -> type[Response]:
    """Return a response class that tells FastAPI the media type."""
    if endpoint.answer is not None:
        return JSONResponse
    return _TEXT.get(endpoint.text, Response)


def _extra(endpoint: Endpoint) -> dict[str, Any]:
    """Return what the signature cannot express: the parameters, for which FastAPI would document a 422, and that the key is
    optional."""
    extra: dict[str, Any] = {} if endpoint.public else {"security": [{}]}
    found = parameters(endpoint)
    return extra | {"parameters": found} if found else extra


def _described(endpoint: Endpoint) -> Callable[..., Any]:
    """Return a function with the operation's body and key as parameters, for FastAPI to inspect."""

    async def described() -> None: ...

    described.__name__ = endpoint.handler.__name__
    described.__doc__ = endpoint.description
    described.__signature__ = Signature(list(_arguments(endpoint)))  # type: ignore[attr-defined]
    return described


def _arguments(endpoint: Endpoint) -> Iterator[Parameter]:
    if not endpoint.documented:
        return
    if endpoint.body is not None:
        examples: dict[str, Any] = {name: {"summary": name, "value": value} for name, value in endpoint.examples.items()}
        yield _argument("body", Annotated[endpoint.body, Body(openapi_examples=examples)])
    if not endpoint.public:
        yield _argument("key", Annotated[Any, Security(_KEY)])
        yield _argument("header_key", Annotated[Any, Security(_HEADER_KEY)])


def _argument(name: str, kind: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind)
