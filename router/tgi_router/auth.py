"""API key authentication."""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest

from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send


class BearerAuth:
    """Lets a request through if its only Authorization header has exactly the key, apart from white space behind it, or if it is
    for one of the routes in `public`, which are for probes. All other paths, known or not, require the key."""

    def __init__(self, app: ASGIApp, key: str, public: Sequence[BaseRoute]) -> None:
        self._app = app
        self._key = key.encode()
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._admits(scope) or self._is_public(scope):
            await self._app(scope, receive, send)
        else:
            await Response(status_code=401, headers={"www-authenticate": "Bearer"})(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is Match.FULL for route in self._public)

    def _admits(self, scope: Scope) -> bool:
        given: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and compare_digest(key.rstrip(b" \t"), self._key)
