"""CORS: access from web pages of other origins."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from tgi_core.config import Settings

_METHODS = ("GET", "POST")


def cors(settings: Settings, methods: Mapping[str, frozenset[str]]) -> list[Middleware]:
    """Return the middleware for pages of the allowed origins, given the methods of each path. They may send any header: OpenAI's client
    for browsers sends a key and a dozen `x-stainless-*` headers. Cookies are not allowed, so a page has no more rights than the key that
    it was given. They may read all headers of a response, such as `retry-after`."""
    allowed = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_allow_origin or ("*",),
        allow_methods=_METHODS,
        allow_headers=("*",),
        expose_headers=("*",),
    )
    return [allowed, Middleware(Options, methods=methods)]


class Options:
    """Answers OPTIONS without a preflight's headers: 200, without a key, as a preflight request is answered, and as TGI does. `Allow` has
    the methods of the path."""

    def __init__(self, app: ASGIApp, methods: Mapping[str, frozenset[str]]) -> None:
        self._app = app
        self._methods = [(compile_path(path)[0], names) for path, names in methods.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            allowed = {"OPTIONS"}.union(*(names for pattern, names in self._methods if pattern.match(scope["path"])))
            await Response(headers={"allow": ", ".join(sorted(allowed))})(scope, receive, send)
        else:
            await self._app(scope, receive, send)
