"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tgi_router.anthropic_answers import AnthropicMessage, MessageEvents, TokenCount
from tgi_router.anthropic_bodies import CountTokensBody, MessagesBody
from tgi_router.anthropic_errors import PATH
from tgi_router.anthropic_events import MessageRendering
from tgi_router.anthropic_request import chat_of
from tgi_router.blocks import BlockReader
from tgi_router.converted_chat import UNREADABLE, ConvertedChats
from tgi_router.disconnect import answer_unless_left
from tgi_router.endpoints import FAILED, Endpoint
from tgi_router.extract import body_bytes, read_body
from tgi_router.inference import Inference
from tgi_router.json_text import dumps
from tgi_router.openai import Dialect
from tgi_router.openai_chat import Chat
from tgi_router.request_examples import COUNT_TOKENS, MESSAGES


class MessagesRoutes:
    """Handlers of Anthropic's API."""

    def __init__(self, inference: Inference, dialect: Dialect, chats: ConvertedChats) -> None:
        self._inference = inference
        self._dialect = dialect
        self._chats = chats
        self._limit = inference.settings.payload_limit

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint(
                "POST",
                PATH,
                self.messages,
                "Anthropic",
                body=MessagesBody,
                examples=MESSAGES,
                answer=AnthropicMessage,
                events=MessageEvents,
                errors=(*UNREADABLE, *FAILED),
            ),
            Endpoint(
                "POST",
                f"{PATH}/count_tokens",
                self.count_tokens,
                "Anthropic",
                body=CountTokensBody,
                examples=COUNT_TOKENS,
                answer=TokenCount,
                errors=(*UNREADABLE, 429),
            ),
        ]

    async def messages(self, request: Request) -> Response:
        """Create a message.

        Compatible with Anthropic's Messages API. The conversation becomes a chat, which is run as by `/v1/chat/completions`. With
        `stream`, the response is a series of named events that ends with `message_stop`. A key may also be sent as `x-api-key`;
        `anthropic-version` and `anthropic-beta` have no effect. Not available with `--strict-tgi`.
        """
        body = await read_body(request, MessagesBody, self._limit)
        return await self._chats.answer(request, body, chat_of, self._rendering)

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of a conversation.

        Returns the number of tokens of the prompt that the chat template renders from the conversation and tools. Nothing is
        generated. Not available with `--strict-tgi`.
        """
        body = await read_body(request, CountTokensBody, self._limit)
        return await answer_unless_left(request, self._count(body, body_bytes(request)))

    async def _count(self, body: CountTokensBody, size: int) -> Response:
        chat = await self._chats.prepare(body, size, chat_of)
        self._inference.metrics.asked()
        count = await self._inference.validator.num_tokens(chat.prompt)
        return Response(dumps({"input_tokens": count}), media_type="application/json", headers=chat.warnings)

    def _rendering(self, body: MessagesBody, chat: Chat, reader: BlockReader) -> MessageRendering:
        return MessageRendering(self._dialect, body.model, reader)
