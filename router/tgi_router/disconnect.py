"""Cancellation of work when a client disconnects. The server reports a disconnect, but does not stop the handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from anyio import CancelScope
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Run the block; cancel it when the client disconnects. The body of the request must have been read already."""
    with CancelScope() as scope:
        watcher = asyncio.create_task(_watch(receive, scope))
        try:
            yield
        finally:
            watcher.cancel()


async def answer_unless_left(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return the response of `work`, which is cancelled when the client disconnects; the response is then discarded."""
    async with while_connected(request.receive):
        return await work
    return Response(status_code=499)


async def _watch(receive: Receive, scope: CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
