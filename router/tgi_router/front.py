"""The front app, which responds while the model loads and the actual app does not exist yet."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tgi_core.config import Settings
from tgi_core.lifecycle import Lifecycle
from tgi_router.app import assemble
from tgi_router.endpoints import make_routes
from tgi_router.errors import NotServing
from tgi_router.openai import Dialect
from tgi_router.probes import Probes
from tgi_router.ui_page import UiRoutes

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Front:
    """An ASGI app that serves probes and the chat page, and responds with 503 to everything else, until the actual app replaces it."""

    def __init__(self, settings: Settings, lifecycle: Lifecycle) -> None:
        self._app = _starting_app(settings, lifecycle)

    def pass_to(self, app: ASGIApp) -> None:
        """Pass all further requests to `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _starting_app(settings: Settings, lifecycle: Lifecycle) -> ASGIApp:
    async def healthy() -> bool:
        return True

    async def not_yet(request: Request) -> Response:
        raise NotServing(lifecycle.reason or "the model is loading")

    served = [*Probes(lifecycle, healthy, lambda: True).endpoints(), *(UiRoutes().endpoints() if settings.ui else ())]
    rest = Route("/{path:path}", not_yet, methods=_METHODS)
    return assemble(Starlette, settings, served, [*make_routes(served), rest], Dialect(settings.strict_tgi), None)
