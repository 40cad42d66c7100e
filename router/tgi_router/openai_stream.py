"""Streams of the routes under /v1: how they begin and end, and how errors within them are reported."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from tgi_router.errors import RouterError
from tgi_router.openai import Dialect
from tgi_router.sse import DONE, EventStream, event
from tgi_router.stream_writer import StreamWriter

Failed = Callable[[RouterError], bytes]
"""Renders an error as the event that ends a stream."""


async def open_stream(
    dialect: Dialect, chunks: AsyncGenerator[bytes, None], writer: StreamWriter, headers: Mapping[str, str]
) -> EventStream:
    """Open a stream of `chunks`, the first of which is `OPENED`. Errors before that chunk are raised here and get their own HTTP
    status; when `strict`, they become events of a stream with status 200, as in TGI."""
    events = _events(chunks, lambda error: event(dialect.error_event_json(error)), DONE, dialect.strict)
    if not dialect.strict:
        await anext(events)
    return EventStream(events, writer, headers)


async def open_event_stream(
    chunks: AsyncGenerator[bytes, None], writer: StreamWriter, headers: Mapping[str, str], failed: Failed
) -> EventStream:
    """Open a stream of named events, which ends without `[DONE]`; otherwise as `open_stream` does."""
    events = _events(chunks, failed)
    await anext(events)
    return EventStream(events, writer, headers)


async def _events(
    chunks: AsyncGenerator[bytes, None], failed: Failed, end: bytes = b"", opened: bool = False
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                opened = True
                yield chunk
    except RouterError as error:
        if not opened:
            raise
        yield failed(error)
    yield end
