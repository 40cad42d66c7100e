"""One entry per route: how it is called, what it answers, and what of that the OpenAPI document says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response]]

HANDLER = "tgi_handler"
"""Where a request's scope has the name of its handler, for logs and traces."""

UNREADABLE = (400, 413, 415, 422)
"""What every route that reads a body may answer."""
FAILED = (424, 429, 500, 503, 504)
"""What every route that generates may answer besides."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of a path. `body` and `answer` are types that pydantic knows; `events` is the type of an event's data, where the answer
    is or can be a stream; `text` is the media type of an answer that is no JSON. The handler's docstring describes it."""

    method: str
    path: str
    handler: Handler
    body: Any = None
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

    @property
    def gated(self) -> bool:
        """Whether it is closed while no requests are taken."""
        return 503 in self.errors and not self.public

    @property
    def generates(self) -> bool:
        """Whether it may be told by a status that there is no room."""
        return set(FAILED) <= set(self.errors)

    @property
    def description(self) -> str:
        """The first paragraph of the handler's docstring."""
        return " ".join((self.handler.__doc__ or "").split("\n\n")[0].split())


def make_routes(endpoints: Iterable[Endpoint], gate: Callable[[Endpoint], None] = lambda endpoint: None) -> list[Route]:
    """One route per path, so that a wrong method is told all the right ones. Of two endpoints the first counts. `gate` is called
    before a gated endpoint and raises when it is closed."""
    paths: dict[str, dict[str, Endpoint]] = defaultdict(dict)
    for endpoint in endpoints:
        paths[endpoint.path].setdefault(endpoint.method, endpoint)
    return [Route(path, _dispatch(methods, gate), methods=list(methods)) for path, methods in paths.items()]


def _dispatch(methods: dict[str, Endpoint], gate: Callable[[Endpoint], None]) -> Handler:
    async def dispatch(request: Request) -> Response:
        endpoint = methods["GET" if request.method == "HEAD" else request.method]
        request.scope[HANDLER] = endpoint.handler.__name__
        if endpoint.gated:
            gate(endpoint)
        return await endpoint.handler(request)

    return dispatch
