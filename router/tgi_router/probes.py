"""Health checks: routes for liveness and readiness probes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from starlette.requests import Request
from starlette.responses import Response

from tgi_core.lifecycle import Lifecycle
from tgi_router.answers import State
from tgi_router.endpoints import Endpoint
from tgi_router.errors import Unhealthy
from tgi_router.json_text import dumps

HEALTH_PATHS = ("/", "/health", "/ping")


class Probes:
    """Handlers that report the server's lifecycle phase. `healthy` queries the shard; `sound`: whether its output can be trusted."""

    def __init__(self, lifecycle: Lifecycle, healthy: Callable[[], Awaitable[bool]], sound: Callable[[], bool]) -> None:
        self._lifecycle = lifecycle
        self._healthy = healthy
        self._sound = sound

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints."""
        for path in HEALTH_PATHS:
            yield Endpoint("GET", path, self.health, "Probes", errors=(503,), public=True)
        for path, handler in (("/livez", self.livez), ("/readyz", self.readyz)):
            yield Endpoint("GET", path, handler, "Probes", answer=State, states=(503,), public=True)

    async def ready(self) -> bool:
        """Return whether requests can be served now. A full queue does not count against it."""
        return self._lifecycle.ready and await self._healthy()

    async def health(self, request: Request) -> Response:
        """Check health.

        Responds with status 200 and an empty body if the server can generate, else with 503. Like all probes, requires no API key.
        The environment variable `AIP_HEALTH_ROUTE` adds another path for this operation.
        """
        if not await self.ready():
            raise Unhealthy
        return Response()

    async def livez(self, request: Request) -> Response:
        """Check liveness.

        For liveness probes. The status is 200 even while the model is being loaded or a shard restarted, and 503 once the process
        must be restarted.
        """
        return self._state(self._lifecycle.live)

    async def readyz(self, request: Request) -> Response:
        """Check readiness.

        For readiness probes. The status is 200 if the server accepts requests, else 503. The body has the lifecycle phase and the
        progress of slow operations.
        """
        return self._state(self._sound() and await self.ready())

    def _state(self, good: bool) -> Response:
        return Response(dumps(self._lifecycle.describe()), 200 if good else 503, media_type="application/json")
