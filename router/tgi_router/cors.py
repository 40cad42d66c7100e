"""Access from web pages of other origins."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tgi_core.config import Settings

_METHODS = ("GET", "POST")


def cors(settings: Settings) -> list[Middleware]:
    """Return the middleware for pages of the allowed origins. They may send any header: OpenAI's client for browsers sends a key and
    a dozen `x-stainless-*` headers. Cookies are not allowed, so a page has no more rights than the key that it was given. They may
    read all headers of a response, such as `retry-after`."""
    allowed = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_allow_origin or ("*",),
        allow_methods=_METHODS,
        allow_headers=("*",),
        expose_headers=("*",),
    )
    return [allowed, Middleware(Options)]


class Options:
    """Answers OPTIONS without a preflight's headers: to every path alike, as a preflight request is answered, and as TGI does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            await Response(headers={"allow": "GET, HEAD, OPTIONS, POST"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)
