"""Streams of the routes under /v1: how they begin and end, and how errors within them are reported."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from tgi_router.errors import RouterError
from tgi_router.openai import Dialect
from tgi_router.sse import DONE, EventStream, event
from tgi_router.stream_writer import StreamWriter


async def open_stream(
    dialect: Dialect, chunks: AsyncGenerator[bytes, None], writer: StreamWriter, headers: Mapping[str, str]
) -> EventStream:
    """Open a stream of `chunks`, the first of which is `OPENED`. Errors before that chunk are raised here and get their own HTTP
    status; when `strict`, they become events of a stream with status 200, as in TGI."""
    events = _events(dialect, chunks)
    if not dialect.strict:
        await anext(events)
    return EventStream(events, writer, headers)


async def _events(dialect: Dialect, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    opened = dialect.strict
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                opened = True
                yield chunk
    except RouterError as error:
        if not opened:
            raise
        yield event(dialect.error_event_json(error))
    yield DONE
