"""One entry per route: how it is called, what it answers, and what of that the OpenAPI document says."""

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
"""Called before a gated endpoint answers a request; raises when it is closed."""

HANDLER = "tgi_handler"
"""Where a request's scope has the name of its handler, for logs and traces."""

UNREADABLE = (400, 413, 415, 422)
"""What every route that reads a body may answer."""
FAILED = (424, 429, 500, 503, 504)
"""What every route that generates may answer besides."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of a path. `body` and `answer` are types that pydantic knows; `events` is the type of an event's data, where the answer
    is or can be a stream; `text` is the media type of an answer that is no JSON. The first paragraph of the handler's docstring is the
    operation's summary in the OpenAPI document, the others are its description."""

    method: str
    path: str
    handler: Handler
    tag: str
    """The group that the operation belongs to; `tgi_router.openapi` describes them."""
    body: Any = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Bodies by what they show."""
    answer: Any = None
    events: Any = None
    done: bool = False
    """Whether a stream ends with `[DONE]`, which is no JSON."""
    text: str | None = None
    errors: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    """Statuses under which the same is answered."""
    public: bool = False
    """Whether it is answered without the api key: health, for probes."""
    documented: bool = True
    """Whether the OpenAPI document has it."""

    @property
    def gated(self) -> bool:
        """Whether it is closed while no requests are taken."""
        return 503 in self.errors and not self.public

    @property
    def generates(self) -> bool:
        """Whether a full server answers it with a status."""
        return set(FAILED) <= set(self.errors)

    @property
    def summary(self) -> str:
        """The operation's summary, one line."""
        return self._paragraphs[0].removesuffix(".")

    @property
    def description(self) -> str:
        """The operation's description, in Markdown."""
        return "\n\n".join(self._paragraphs[1:])

    @property
    def _paragraphs(self) -> list[str]:
        return [" ".join(each.split()) for each in cleandoc(self.handler.__doc__ or "").split("\n\n")]


def _open(endpoint: Endpoint, request: Request) -> None:
    """A gate that is always open."""


def distinct(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Of two endpoints for one path and method the first."""
    found: dict[tuple[str, str], Endpoint] = {}
    for endpoint in endpoints:
        found.setdefault((endpoint.path, endpoint.method), endpoint)
    return list(found.values())


def methods_by_path(endpoints: Iterable[Endpoint]) -> Mapping[str, frozenset[str]]:
    """The methods of each path, for answers with status 405. GET includes HEAD."""
    found: dict[str, set[str]] = defaultdict(set)
    for endpoint in endpoints:
        found[endpoint.path] |= {"GET", "HEAD"} if endpoint.method == "GET" else {endpoint.method}
    return {path: frozenset(methods) for path, methods in found.items()}


def serving(endpoint: Endpoint, gate: Gate = _open) -> Handler:
    """A handler that asks the gate first."""
    handler, name, gated = endpoint.handler, endpoint.handler.__name__, endpoint.gated

    async def serve(request: Request) -> Response:
        request.scope[HANDLER] = name
        if gated:
            gate(endpoint, request)
        return await handler(request)

    return serve


def make_routes(endpoints: Iterable[Endpoint]) -> list[Route]:
    """Routes of Starlette's that are always open, for where no document is needed."""
    return [Route(each.path, serving(each), methods=[each.method]) for each in endpoints]
