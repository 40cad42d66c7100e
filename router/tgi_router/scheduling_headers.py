"""Scheduling headers of every route that generates, and the client of a request."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from tgi_core.scheduler.types import SchedulingParams
from tgi_router.clients import Clients
from tgi_router.errors import ValidationFailed

PRIORITIES = {"low": -1, "normal": 0, "high": 1}
MAX_SALT = 256

PRIORITY, TIMEOUT, SALT = "x-request-priority", "x-request-timeout", "x-cache-salt"


class SchedulingHeaders:
    """Parses the scheduling headers. `longest_s`, the operator's limit in seconds, bounds every request, if set."""

    def __init__(self, clients: Clients, longest_s: float | None) -> None:
        self._clients = clients
        self._longest_s = longest_s

    def client(self, request: HTTPConnection) -> str:
        """Return the client of a request."""
        return self._clients.of(request.scope, request.headers)

    def read(self, request: HTTPConnection) -> SchedulingParams:
        """Parse the headers of a request. Raises ValidationFailed for a value out of range."""
        headers, client = request.headers, self.client(request)
        name = headers.get(PRIORITY, "").lower()
        if name and name not in PRIORITIES:
            raise ValidationFailed(f"header `{PRIORITY}` must be one of {', '.join(PRIORITIES)}")
        salt = headers.get(SALT, "")
        if len(salt) > MAX_SALT:
            raise ValidationFailed(f"header `{SALT}` must have at most {MAX_SALT} characters. Given: {len(salt)}")
        limits = [limit for limit in (self._longest_s, _timeout_s(headers)) if limit is not None]
        return SchedulingParams(
            client=client,
            priority=PRIORITIES[name or "normal"],
            urgent=name == "high" and self._clients.may_be_urgent(request.scope, client),
            salt=salt,
            timeout_s=min(limits, default=None),
        )


def _timeout_s(headers: Headers) -> float | None:
    given = headers.get(TIMEOUT, "")
    if not given:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValidationFailed(f"header `{TIMEOUT}` must be a number of seconds > 0")
    return seconds
