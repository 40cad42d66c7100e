"""Chats that come from requests of other APIs (Messages, Responses): each is converted to a chat, and its response is rendered in
the form of its API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tgi_core.scheduler.types import SchedulingParams
from tgi_core.wire.types import Generation
from tgi_router.blocks import BlockReader
from tgi_router.disconnect import answer_unless_left
from tgi_router.errors import RouterError
from tgi_router.extract import body_bytes
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Choice, Inference, Result
from tgi_router.message_reader import MessageReader
from tgi_router.openai_bodies import ChatBody, Message
from tgi_router.openai_chat import Chat, ChatRoutes
from tgi_router.openai_stream import open_event_stream
from tgi_router.reasoning import ReasoningReader
from tgi_router.sse import OPENED
from tgi_router.stream_writer import StreamWriter

UNREADABLE = (400, 413, 415)
"""Statuses of bodies that are refused; where the other routes say 422, these APIs say 400."""

_Given = TypeVar("_Given")


@dataclass(frozen=True, slots=True)
class Converted:
    """A chat, and the headers that name the fields that are not honoured."""

    body: ChatBody
    warnings: Mapping[str, str]


class Rendering(Protocol):
    """Renders one response in the form of an API."""

    def begin(self) -> bytes:
        """Render the events before the first token."""

    def events(self, choice: Choice, generation: Generation) -> bytes:
        """Render the events of the result of a step."""

    def failed(self, error: RouterError) -> bytes:
        """Render the event of an error that ends the stream."""

    def whole(self, result: Result) -> str:
        """Render the complete response as JSON."""


class ConvertedChats:
    """Runs converted chats."""

    def __init__(self, inference: Inference, headers: ComputeHeaders, chat: ChatRoutes) -> None:
        self._inference = inference
        self._headers = headers
        self._chat = chat

    async def prepare(self, body: _Given, size: int, convert: Callable[[_Given], Converted]) -> Chat:
        """Convert a body of `size` bytes, check it and render its prompt. Raises RouterError."""
        try:
            converted = await self._inference.threads.run(size, convert, body)
        except RouterError as error:
            self._inference.metrics.refused(error)
            raise
        chat = await self._chat.prepare(converted.body, size)
        return replace(chat, warnings={**chat.warnings, **converted.warnings})

    async def answer(
        self,
        request: Request,
        body: _Given,
        convert: Callable[[_Given], Converted],
        render: Callable[[_Given, Chat, BlockReader], Rendering],
    ) -> Response:
        """Respond to a request with its body."""
        scheduling = self._inference.scheduling(request)
        return await answer_unless_left(request, self._answer(request, body, convert, render, scheduling))

    async def _answer(
        self,
        request: Request,
        body: _Given,
        convert: Callable[[_Given], Converted],
        render: Callable[[_Given, Chat, BlockReader], Rendering],
        scheduling: SchedulingParams,
    ) -> Response:
        chat = await self.prepare(body, body_bytes(request), convert)
        rendering = render(body, chat, self._reader(chat))
        if not chat.body.stream:
            return await self._complete(chat, rendering, scheduling)
        writer = StreamWriter.of(request.scope)
        headers = {**self._headers.stream(len(chat.prompt.text)), **chat.warnings}
        events = self._events(chat, rendering, scheduling, writer, headers)
        return await open_event_stream(events, writer, headers, rendering.failed)

    def _reader(self, chat: Chat) -> BlockReader:
        """Return the reader of a response. A constrained response has no reasoning: its grammar begins with the first token."""
        templates, stops = self._inference.model.chat_templates, chat.parameters.stop
        tags = None if templates is None or chat.constrained else templates.reasoning
        if tags is None:
            return BlockReader(MessageReader(stops, chat.names), stops)
        reasoning = ReasoningReader(tags, opened=chat.prompt.text.rstrip().endswith(tags.open))
        return BlockReader(MessageReader(stops, chat.names, reasoning), stops, (tags.open, tags.close))

    async def _complete(self, chat: Chat, rendering: Rendering, scheduling: SchedulingParams) -> Response:
        async with self._chat.call(chat, scheduling) as call:
            [result] = await call.results()
        answer = rendering.whole(result)
        headers = {**self._headers.complete_one(result), **chat.warnings}
        call.checks.warn(headers)
        return Response(answer, media_type="application/json", headers=headers)

    async def _events(
        self, chat: Chat, rendering: Rendering, scheduling: SchedulingParams, writer: StreamWriter, headers: dict[str, str]
    ) -> AsyncGenerator[bytes, None]:
        async with self._chat.call(chat, scheduling) as call:
            call.checks.warn(headers)
            yield OPENED
            yield rendering.begin()
            await call.write_to(writer, rendering.events)


def appended(messages: list[Message], message: Message) -> None:
    """Append a message, to the last one if both are the user's or the system's: many templates require that turns alternate."""
    last = messages[-1] if messages else None
    if last is None or last.role != message.role or message.role not in ("user", "system"):
        messages.append(message)
    else:
        messages[-1] = last.model_copy(update={"content": [*(last.content or ()), *(message.content or ())]})


def function_call(identifier: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a past tool call in OpenAI's form."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}
