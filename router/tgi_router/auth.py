"""The api key."""

from __future__ import annotations

from hmac import compare_digest

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

PUBLIC = frozenset({(method, path) for method in ("GET", "HEAD") for path in ("/", "/health", "/ping")})
"""What probes may call without a key. Everything else, known or not, needs one."""


class BearerAuth:
    """Lets a request through if its one Authorization header holds the key, byte for byte."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) in PUBLIC or self._admits(scope):
            await self._app(scope, receive, send)
        else:
            await Response(status_code=401)(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        given: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and compare_digest(key, self._key)
