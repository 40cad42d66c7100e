"""The routes for probes: whether to keep the process, and whether to send it requests."""

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
    """Handlers that tell the phase of the server's life. `healthy` asks the shard, `sound` whether its numbers are to be trusted."""

    def __init__(self, lifecycle: Lifecycle, healthy: Callable[[], Awaitable[bool]], sound: Callable[[], bool]) -> None:
        self._lifecycle = lifecycle
        self._healthy = healthy
        self._sound = sound

    def endpoints(self) -> Iterator[Endpoint]:
        """The endpoints."""
        for path in HEALTH_PATHS:
            yield Endpoint("GET", path, self.health, "Probes", errors=(503,), public=True)
        for path, handler in (("/livez", self.livez), ("/readyz", self.readyz)):
            yield Endpoint("GET", path, handler, "Probes", answer=State, states=(503,), public=True)

    async def ready(self) -> bool:
        """Whether requests can be served now. That the queue is full does not change it."""
        return self._lifecycle.ready and await self._healthy()

    async def health(self, request: Request) -> Response:
        """Tell whether requests would be answered.

        Status 200 with an empty body if so, 503 if not. Needs no key, as all probes. The environment variable `AIP_HEALTH_ROUTE` adds
        another path for it.
        """
        if not await self.ready():
            raise Unhealthy
        return Response()

    async def livez(self, request: Request) -> Response:
        """Tell whether the process is sound.

        For a liveness probe. The status is 200 also while the model is loaded or a shard is restarted, and 503 once the process has to
        be ended.
        """
        return self._state(self._lifecycle.live)

    async def readyz(self, request: Request) -> Response:
        """Tell whether requests should be sent here.

        For a readiness probe: status 200 if so, 503 if not. The body tells the phase, and how far slow work has come.
        """
        return self._state(self._sound() and await self.ready())

    def _state(self, good: bool) -> Response:
        return Response(dumps(self._lifecycle.describe()), 200 if good else 503, media_type="application/json")
