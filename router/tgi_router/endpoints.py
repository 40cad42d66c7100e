"""Endpoints: the path, handler, responses and OpenAPI documentation of each route."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response]]
Gate = Callable[["Endpoint", Request], None]
"""Called before the handler of a gated endpoint; raises to reject the request."""

HANDLER = "tgi_handler"
"""Key of the handler's name in a request's scope, for logs and traces."""

UNREADABLE = (400, 413, 415, 422)
"""Error statuses of every route that reads a body."""
FAILED = (424, 429, 500, 503, 504)
"""Further error statuses of every route that generates."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of a path. `body` and `answer` are types that pydantic can validate; `events` is the type of an event's data, if the
    response can be a stream; `text` is the media type of a response that is not JSON. In the OpenAPI document, the first paragraph of
    the handler's docstring is the operation's summary, and the other paragraphs are its description."""

    method: str
    path: str
    handler: Handler
    tag: str
    """Group of the operation; `tgi_router.openapi` describes the groups."""
    body: Any = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Example bodies by title."""
    answer: Any = None
    events: Any = None
    done: bool = False
    """Whether a stream ends with `[DONE]`, which is not JSON."""
    text: str | None = None
    errors: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    """Further statuses with the same response body."""
    public: bool = False
    """Whether no API key is required: for probes."""
    documented: bool = True
    """Whether the OpenAPI document includes it."""

    @property
    def shown_path(self) -> str:
        """Path as the OpenAPI document and messages show it."""
        return self.path.replace(":path}", "}")

    @property
    def gated(self) -> bool:
        """Whether requests are rejected while the server does not accept any."""
        return 503 in self.errors and not self.public

    @property
    def generates(self) -> bool:
        """Whether it generates, and an overloaded server rejects requests with a status."""
        return set(FAILED) <= set(self.errors)

    @property
    def summary(self) -> str:
        """Summary of the operation, one line."""
        return self._paragraphs[0].removesuffix(".")

    @property
    def description(self) -> str:
        """Description of the operation, in Markdown."""
        return "\n\n".join(self._paragraphs[1:])

    @property
    def _paragraphs(self) -> list[str]:
        return [" ".join(each.split()) for each in cleandoc(self.handler.__doc__ or "").split("\n\n")]


def _open(endpoint: Endpoint, request: Request) -> None:
    """Let every request through."""


def distinct(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Drop duplicate endpoints: the first for a path and method takes precedence."""
    found: dict[tuple[str, str], Endpoint] = {}
    for endpoint in endpoints:
        found.setdefault((endpoint.path, endpoint.method), endpoint)
    return list(found.values())


def methods_by_path(endpoints: Iterable[Endpoint]) -> Mapping[str, frozenset[str]]:
    """Return the methods of each path, for responses with status 405. GET includes HEAD."""
    found: dict[str, set[str]] = defaultdict(set)
    for endpoint in endpoints:
        found[endpoint.path] |= {"GET", "HEAD"} if endpoint.method == "GET" else {endpoint.method}
    return {path: frozenset(methods) for path, methods in found.items()}


def serving(endpoint: Endpoint, gate: Gate = _open) -> Handler:
    """Wrap the handler of an endpoint so that the gate is checked first."""
    handler, name, gated = endpoint.handler, endpoint.handler.__name__, endpoint.gated

    async def serve(request: Request) -> Response:
        request.scope[HANDLER] = name
        if gated:
            gate(endpoint, request)
        return await handler(request)

    return serve


def make_routes(endpoints: Iterable[Endpoint]) -> list[Route]:
    """Return Starlette routes without a gate, for apps without an OpenAPI document."""
    return [Route(each.path, serving(each), methods=[each.method]) for each in endpoints]
