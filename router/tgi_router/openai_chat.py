"""POST /v1/chat/completions and /chat_tokenize."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from tgi_router.answers import ChatTokenizeResponse
from tgi_router.bodies import ChatBody, GrammarShape, Parameters
from tgi_router.chat_answer import Chunks, Names, answer_json
from tgi_router.disconnect import answer_unless_left
from tgi_router.endpoints import FAILED, UNREADABLE, Endpoint
from tgi_router.errors import RouterError, TemplateFailed, ToolFailed, ValidationFailed
from tgi_router.extract import read_body
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Call, Inference
from tgi_router.json_text import dumps
from tgi_router.literals import LiteralTokens
from tgi_router.openai import Dialect, Envelope, usage
from tgi_router.openai_answers import ChatCompletion, ChatEvents
from tgi_router.openai_stream import open_stream
from tgi_router.outlet import Outlet
from tgi_router.sse import OPENED, event
from tgi_router.template_pool import TemplatePool
from tgi_router.templates import Conversation
from tgi_router.tokens_answer import tokens_of_text
from tgi_router.tools import TOOL_PROMPT, ToolUse, plan_tools
from tgi_router.validation import Extras, Prompt


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that is ready to be answered."""

    body: ChatBody
    parameters: Parameters
    extras: Extras
    prompt: Prompt
    names: Names
    """The functions that may be called."""


class ChatRoutes:
    """The handlers of conversations."""

    def __init__(self, inference: Inference, headers: ComputeHeaders, dialect: Dialect, templates: TemplatePool) -> None:
        self._inference = inference
        self._headers = headers
        self._dialect = dialect
        self._templates = templates
        self._model = inference.model
        self._literals = LiteralTokens(inference.model.tokenizer.special_texts)

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint(
                "POST",
                "/v1/chat/completions",
                self.chat_completions,
                body=ChatBody,
                answer=ChatCompletion,
                events=ChatEvents,
                done=True,
                errors=(*UNREADABLE, *FAILED),
            ),
            Endpoint(
                "POST",
                "/chat_tokenize",
                self.chat_tokenize,
                body=ChatBody,
                answer=ChatTokenizeResponse,
                errors=(*UNREADABLE, 429),
            ),
        ]

    async def chat_completions(self, request: Request) -> Response:
        """Answers to a conversation, whole or as a stream of chunks."""
        return await self.answer(request, await read_body(request, ChatBody, self._inference.settings.payload_limit))

    async def answer(self, request: Request, body: ChatBody) -> Response:
        """The same, for a body that has been read."""
        answer = self._stream(body, Outlet.of(request.scope)) if body.stream else self._complete(body)
        return await answer_unless_left(request, answer)

    async def _stream(self, body: ChatBody, outlet: Outlet) -> Response:
        chat = await self.prepare(body)
        headers = self._headers.stream(len(chat.prompt.text))
        return await open_stream(self._dialect, self._chunks(chat, outlet), outlet, headers)

    async def chat_tokenize(self, request: Request) -> Response:
        """The prompt that a conversation becomes, and its tokens."""
        body = await read_body(request, ChatBody, self._inference.settings.payload_limit)
        return await answer_unless_left(request, self._tokens(body))

    async def _tokens(self, body: ChatBody) -> Response:
        chat = await self.prepare(body)
        self._inference.metrics.asked()
        text, tokenizer = chat.prompt.text, self._model.tokenizer
        tokens = await self._inference.workers.run(len(text), tokens_of_text, tokenizer, text, False, chat.prompt.literals)
        return Response(dumps({"tokenize_response": tokens, "templated_text": text}), media_type="application/json")

    async def prepare(self, body: ChatBody) -> Chat:
        """What precedes the generation. Raises RouterError."""
        try:
            if any(message.has_image for message in body.messages):
                raise ValidationFailed("image modality is not supported")
            tools = plan_tools(body)
            shape = _grammar(body)
            if shape is not None and (tools is not None or (self._dialect.strict and body.tools is not None)):
                raise ToolFailed("Grammar and tools are mutually exclusive")
            parameters = self._dialect.parameters(body, top_n_tokens=body.top_logprobs, grammar=shape)
            extras = self._dialect.extras(body, bool(body.logprobs), None if tools is None else tools.schema)
            prompt = await self._render(body, tools)
        except RouterError as error:
            self._inference.metrics.refused(error)
            raise
        return Chat(body, parameters, extras, prompt, frozenset() if tools is None else tools.names)

    async def _render(self, body: ChatBody, tools: ToolUse | None) -> Prompt:
        templates = self._model.chat_templates
        if templates is None:
            raise TemplateFailed("template not found")
        note = body.tool_prompt or TOOL_PROMPT
        hidden = self._literals.hide()
        conversation = Conversation(body.messages, () if tools is None else tools.tools, note, self._dialect.strict, hidden)
        text, literals = hidden.reveal(await templates.render(self._templates, conversation))
        return Prompt(text, add_special_tokens=False, literals=literals)

    def _call(self, chat: Chat) -> Call:
        return self._inference.call((chat.prompt,), chat.parameters, streaming=bool(chat.body.stream), extras=chat.extras)

    def _envelope(self, body: ChatBody) -> Envelope:
        """The client's name for the model is echoed, whatever it is, unless it is TGI's placeholder."""
        return self._dialect.seal("chatcmpl", self._model.name if body.model is None or body.model == "tgi" else body.model)

    async def _complete(self, body: ChatBody) -> Response:
        chat = await self.prepare(body)
        async with self._call(chat) as call:
            results = self._dialect.ordered(await call.results())
        stops = self._dialect.stops(chat.parameters)
        answer = answer_json(self._dialect, self._envelope(body), results, stops, chat.names, bool(body.logprobs))
        return Response(answer, media_type="application/json", headers=self._headers.complete_choices(results))

    async def _chunks(self, chat: Chat, outlet: Outlet) -> AsyncGenerator[bytes, None]:
        body, stops = chat.body, self._dialect.stops(chat.parameters)
        chunks = Chunks(self._dialect, self._envelope(body), stops, chat.names, bool(body.logprobs))
        async with self._call(chat) as call:
            yield OPENED
            await call.write_to(outlet, chunks.events)
            if body.stream_options is not None and body.stream_options.include_usage:
                yield event(chunks.usage(usage(call.choices)))


def _grammar(body: ChatBody) -> GrammarShape | None:
    """The response format, unless it is OpenAI's way of asking for none."""
    return None if body.response_format is None or body.response_format.type == "text" else body.response_format
