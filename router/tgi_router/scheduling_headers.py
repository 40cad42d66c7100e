"""What a client can ask of the scheduler, on every route that generates, by headers; and who it is."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tgi_core.scheduler.types import GenerationRequest
from tgi_router.clients import Clients
from tgi_router.errors import ValidationFailed

PRIORITIES = {"low": -1, "normal": 0, "high": 1}
MAX_SALT = 256

PRIORITY, TIMEOUT, SALT = "x-request-priority", "x-request-timeout", "x-cache-salt"


@dataclass(frozen=True, slots=True)
class SchedulingHeaders:
    """The headers as they came, "" where there is none; who sent them, and whether it may go before others."""

    priority: str = ""
    timeout: str = ""
    salt: str = ""
    client: str = ""
    trusted: bool = False

    def apply(self, request: GenerationRequest, longest_s: float | None) -> GenerationRequest:
        """The request with them; none takes longer than the operator allows. Raises ValidationFailed."""
        if self.priority and self.priority not in PRIORITIES:
            raise ValidationFailed(f"header `{PRIORITY}` must be one of {', '.join(PRIORITIES)}")
        if len(self.salt) > MAX_SALT:
            raise ValidationFailed(f"header `{SALT}` must have at most {MAX_SALT} characters. Given: {len(self.salt)}")
        limits = [limit for limit in (longest_s, self._timeout_s()) if limit is not None]
        priority = PRIORITIES[self.priority or "normal"]
        urgent = self.trusted and priority > 0
        timeout_s = min(limits, default=None)
        return replace(request, client=self.client, priority=priority, urgent=urgent, salt=self.salt, timeout_s=timeout_s)

    def _timeout_s(self) -> float | None:
        if not self.timeout:
            return None
        try:
            seconds = float(self.timeout)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < 1e9:
            raise ValidationFailed(f"header `{TIMEOUT}` must be a number of seconds > 0")
        return seconds


_NONE = SchedulingHeaders()
_current: ContextVar[SchedulingHeaders] = ContextVar("scheduling_headers", default=_NONE)


def current() -> SchedulingHeaders:
    """Those of the request that is being answered."""
    return _current.get()


class SchedulingHeadersMiddleware:
    """ASGI middleware that keeps them while a request is answered."""

    def __init__(self, app: ASGIApp, clients: Clients) -> None:
        self._app = app
        self._clients = clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            client, priority = self._clients.of(scope, headers), headers.get(PRIORITY, "").lower()
            trusted = priority == "high" and self._clients.may_be_urgent(scope, client)
            _current.set(SchedulingHeaders(priority, headers.get(TIMEOUT, ""), headers.get(SALT, ""), client, trusted))
        await self._app(scope, receive, send)
