"""POST /v1/responses: OpenAI's Responses API, without storage."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tgi_router.blocks import BlockReader
from tgi_router.converted_chat import UNREADABLE, ConvertedChats
from tgi_router.endpoints import FAILED, Endpoint
from tgi_router.extract import read_body
from tgi_router.inference import Inference
from tgi_router.openai import RESPONSES as PATH
from tgi_router.openai import Dialect
from tgi_router.openai_chat import Chat
from tgi_router.request_examples import RESPONSES
from tgi_router.responses_answers import ResponseEvents, ResponseObject
from tgi_router.responses_bodies import ResponsesBody
from tgi_router.responses_events import ResponseRendering
from tgi_router.responses_request import chat_of


class ResponsesRoutes:
    """Handler of the Responses API."""

    def __init__(self, inference: Inference, dialect: Dialect, chats: ConvertedChats) -> None:
        self._model = inference.model.name
        self._limit = inference.settings.payload_limit
        self._dialect = dialect
        self._chats = chats

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint(
                "POST",
                PATH,
                self.responses,
                "OpenAI",
                body=ResponsesBody,
                examples=RESPONSES,
                answer=ResponseObject,
                events=ResponseEvents,
                errors=(*UNREADABLE, *FAILED),
            )
        ]

    async def responses(self, request: Request) -> Response:
        """Create a response.

        Compatible with OpenAI's Responses API, as with `store: false`: nothing is stored, and `input` is the whole conversation, which
        is run as a chat by `/v1/chat/completions`. Functions are the only tools. With `stream`, the response is a series of named
        events that ends with `response.completed`, `response.incomplete` or `response.failed`. Not available with `--strict-tgi`.
        """
        body = await read_body(request, ResponsesBody, self._limit)
        return await self._chats.answer(request, body, chat_of, self._rendering)

    def _rendering(self, body: ResponsesBody, chat: Chat, reader: BlockReader) -> ResponseRendering:
        name = self._model if body.model is None or body.model == "tgi" else body.model
        return ResponseRendering(self._dialect, name, body, reader)
