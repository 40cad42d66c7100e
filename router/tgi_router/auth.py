"""API key authentication (`--api-key`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hmac import compare_digest

from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from tgi_router.anthropic_errors import error_object, is_anthropic
from tgi_router.json_text import dumps


class ApiKey:
    """The server's key, which requests send as a bearer token or, as Anthropic's clients do, as `x-api-key`."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a request has exactly the key, apart from white space behind it, in its only Authorization header, in its only
        x-api-key header, or in both."""
        bearers = [value for name, value in headers if name == b"authorization"]
        keys = [value for name, value in headers if name == b"x-api-key"]
        if len(bearers) > 1 or len(keys) > 1:
            return False
        return bool(bearers or keys) and all([*map(self._is_bearer, bearers), *map(self._is_key, keys)])

    def _is_bearer(self, value: bytes) -> bool:
        scheme, _, key = value.partition(b" ")
        return scheme.lower() == b"bearer" and self._is_key(key)

    def _is_key(self, value: bytes) -> bool:
        return compare_digest(value.rstrip(b" \t"), self._key)


class KeyAuth:
    """Lets a request through if it has the key, or if it is for one of the routes in `public`, which are for probes. All other paths,
    known or not, require the key."""

    def __init__(self, app: ASGIApp, key: str, public: Sequence[BaseRoute]) -> None:
        self._app = app
        self._key = ApiKey(key)
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._key.admits(scope["headers"]) or self._is_public(scope):
            await self._app(scope, receive, send)
        else:
            await _refusal(scope["path"])(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is Match.FULL for route in self._public)


def _refusal(path: str) -> Response:
    """Return the response without a key. Only Anthropic's clients show its body."""
    text = dumps(error_object(401, "the API key is missing or wrong")) if is_anthropic(path) else ""
    media_type = "application/json" if text else None
    return Response(text, 401, {"www-authenticate": "Bearer"}, media_type)
