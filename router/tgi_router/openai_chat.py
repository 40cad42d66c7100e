"""POST /v1/chat/completions and /chat_tokenize."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tgi_core.grammar import Grammar, parse_grammar
from tgi_core.scheduler.types import SchedulingParams
from tgi_router.answers import ChatTokenizeResponse
from tgi_router.bodies import GrammarShape, Parameters
from tgi_router.chat_answer import Chunks, answer_json
from tgi_router.disconnect import answer_unless_left
from tgi_router.endpoints import FAILED, UNREADABLE, Endpoint
from tgi_router.errors import RouterError, TemplateFailed, ToolFailed, ValidationFailed
from tgi_router.extract import body_bytes, read_body
from tgi_router.grammars import reporting_errors
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Call, Inference
from tgi_router.json_text import quote
from tgi_router.message_reader import Names
from tgi_router.openai import Dialect, Envelope, usage
from tgi_router.openai_answers import ChatCompletion, ChatEvents
from tgi_router.openai_bodies import ChatBody, Message
from tgi_router.openai_stream import open_stream
from tgi_router.request_examples import CHAT, CHAT_TOKENIZE
from tgi_router.request_fields import Route
from tgi_router.sse import OPENED, event
from tgi_router.stream_writer import StreamWriter
from tgi_router.template_pool import TemplatePool
from tgi_router.templates import Conversation
from tgi_router.tools import TOOL_PROMPT, ToolUse, plan_tools
from tgi_router.validation import Extras, Prompt

PROMPT_FACTOR = 4
"""A rendered chat prompt may have at most this many times the largest body's bytes, in characters."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat request that is ready to run."""

    body: ChatBody
    parameters: Parameters
    extras: Extras
    prompt: Prompt
    names: Names
    """Names of the functions that the model may call."""
    warnings: Mapping[str, str]
    """Headers that name what the client does not get."""

    @property
    def constrained(self) -> bool:
        """Whether a grammar constrains the response."""
        return self.parameters.grammar is not None or self.extras.call_schema is not None


@dataclass(frozen=True, slots=True)
class _Plan:
    """A chat request before its template is rendered."""

    parameters: Parameters
    extras: Extras
    job: bytes
    urls: tuple[str, ...]
    """Of images."""
    names: Names
    warnings: Mapping[str, str]


class ChatRoutes:
    """Handlers of chat completions and of chat tokenization."""

    def __init__(self, inference: Inference, headers: ComputeHeaders, dialect: Dialect, templates: TemplatePool) -> None:
        self._inference = inference
        self._headers = headers
        self._dialect = dialect
        self._templates = templates
        self._model = inference.model
        self._longest = PROMPT_FACTOR * inference.settings.payload_limit

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint(
                "POST",
                "/v1/chat/completions",
                self.chat_completions,
                "OpenAI",
                body=ChatBody,
                examples=CHAT,
                answer=ChatCompletion,
                events=ChatEvents,
                done=True,
                errors=(*UNREADABLE, *FAILED),
            ),
            Endpoint(
                "POST",
                "/chat_tokenize",
                self.chat_tokenize,
                "Tokens",
                body=ChatBody,
                examples=CHAT_TOKENIZE,
                answer=ChatTokenizeResponse,
                errors=(*UNREADABLE, 429),
            ),
        ]

    async def chat_completions(self, request: Request) -> Response:
        """Create a chat completion.

        Compatible with OpenAI's chat completions. The model's chat template renders the messages and tools into a prompt.
        `response_format`, and a `tool_choice` other than `auto` and `none`, constrain the output with a grammar. With `stream`, the
        response is a series of chunks that ends with `[DONE]`.
        """
        return await self.answer(request, await read_body(request, ChatBody, self._inference.settings.payload_limit))

    async def answer(self, request: Request, body: ChatBody) -> Response:
        """Create a chat completion for a parsed body."""
        scheduling = self._inference.scheduling(request)
        preparing = self.prepare(body, body_bytes(request))
        if body.stream:
            answer = self._stream(preparing, scheduling, StreamWriter.of(request.scope))
        else:
            answer = self._complete(preparing, scheduling)
        return await answer_unless_left(request, answer)

    async def _stream(self, preparing: Awaitable[Chat], scheduling: SchedulingParams, writer: StreamWriter) -> Response:
        chat = await preparing
        headers = {**self._headers.stream(len(chat.prompt.text)), **chat.warnings}
        return await open_stream(self._dialect, self._chunks(chat, scheduling, writer, headers), writer, headers)

    async def chat_tokenize(self, request: Request) -> Response:
        """Render and tokenize a chat.

        Returns the prompt that the chat template renders from the messages and tools, and the tokens of that prompt. Nothing is
        generated, and fields that do not affect the prompt have no effect.
        """
        body = await read_body(request, ChatBody, self._inference.settings.payload_limit)
        return await answer_unless_left(request, self._tokens(self.prepare(body, body_bytes(request))))

    async def _tokens(self, preparing: Awaitable[Chat]) -> Response:
        chat = await preparing
        self._inference.metrics.asked()
        text = chat.prompt.text
        if chat.prompt.images:
            raise ValidationFailed("messages with images cannot be shown as tokens")
        tokens = await self._inference.tokenizing.tokens(text, False, chat.prompt.literals)
        answer = b'{"tokenize_response":%b,"templated_text":%b}' % (tokens, quote(text).encode())
        return Response(answer, media_type="application/json")

    async def prepare(self, body: ChatBody, size: int) -> Chat:
        """Check a body and render its prompt. `size`: bytes of the HTTP body. Raises RouterError."""
        try:
            plan = await self._inference.threads.run(size, self._plan, body)
            prompt = replace(await self._render(body, plan, size), images=plan.urls)
        except RouterError as error:
            self._inference.metrics.refused(error)
            raise
        return Chat(body, plan.parameters, plan.extras, prompt, plan.names, plan.warnings)

    async def _render(self, body: ChatBody, plan: _Plan, size: int) -> Prompt:
        """Render the prompt. If the template refuses the role `developer`, OpenAI's newer name for it, it gets `system`."""
        try:
            return await self._templates.render(plan.job)
        except TemplateFailed:
            if self._dialect.strict or all(message.role != "developer" for message in body.messages):
                raise
            renamed = body.model_copy(update={"messages": [_without_developer(message) for message in body.messages]})
            return await self._templates.render((await self._inference.threads.run(size, self._plan, renamed)).job)

    def _plan(self, body: ChatBody) -> _Plan:
        """Do the work that takes time in proportion to the body; runs in a worker. Raises RouterError."""
        if not body.messages and not self._dialect.strict:
            raise ValidationFailed("`messages` must have at least one message")
        urls = [url for message in body.messages for url in message.image_urls]
        if urls and not self._inference.validator.sees_images:
            raise ValidationFailed("image modality is not supported")
        speculates = self._inference.generator.speculates
        ignored = [] if speculates or body.prediction is None else ["prediction"]
        warnings = self._dialect.warnings(Route.CHAT, body, ignored)
        shape = self._dialect.grammar(body, body.response_format)
        if shape is not None and self._dialect.strict and (body.tools is not None or plan_tools(body) is not None):
            raise ToolFailed("Grammar and tools are mutually exclusive")
        tools = plan_tools(body, answer=None if shape is None else self._answer(body, shape))
        parameters = self._dialect.parameters(body, top_n_tokens=body.top_logprobs, grammar=shape)
        prediction = body.prediction.text if speculates and body.prediction is not None else ""
        extras = self._dialect.extras(body, bool(body.logprobs), None if tools is None else tools.schema, prediction)
        names: Names = frozenset() if tools is None else tools.names
        return _Plan(parameters, extras, self._draft(body, tools), tuple(urls), names, warnings)

    def _answer(self, body: ChatBody, shape: GrammarShape) -> Grammar | None:
        """Return the grammar of an answer, if tools may be called instead: otherwise it is parsed with the parameters."""
        if not body.tools:
            return None
        with reporting_errors():
            return parse_grammar(shape.given(), max_bytes=self._inference.settings.max_grammar_bytes)

    def _draft(self, body: ChatBody, tools: ToolUse | None) -> bytes:
        templates = self._model.chat_templates
        if templates is None:
            raise TemplateFailed("template not found")
        note = body.tool_prompt or TOOL_PROMPT
        conversation = Conversation(
            body.messages, () if tools is None else tools.tools, note, self._dialect.strict, _variables(body)
        )
        try:
            return templates.job(conversation, self._longest).to_json()
        except RecursionError:
            raise TemplateFailed("`messages` or `tools` are nested too deep") from None

    def call(self, chat: Chat, scheduling: SchedulingParams) -> Call:
        """Create the call of a chat, for `async with`."""
        streaming = bool(chat.body.stream)
        return self._inference.call((chat.prompt,), chat.parameters, scheduling, streaming=streaming, extras=chat.extras)

    def _envelope(self, body: ChatBody) -> Envelope:
        """Create the envelope. It echoes the request's model name, whatever it is, unless that is TGI's placeholder."""
        return self._dialect.seal("chatcmpl", self._model.name if body.model is None or body.model == "tgi" else body.model)

    async def _complete(self, preparing: Awaitable[Chat], scheduling: SchedulingParams) -> Response:
        chat = await preparing
        body = chat.body
        async with self.call(chat, scheduling) as call:
            results = self._dialect.ordered(await call.results())
        stops = self._dialect.stops(chat.parameters)
        shown = self._dialect.shown(body)
        answer = answer_json(self._dialect, self._envelope(body), results, stops, chat.names, bool(body.logprobs), shown)
        headers = {**self._headers.complete_choices(results), **chat.warnings}
        call.checks.warn(headers)
        return Response(answer, media_type="application/json", headers=headers)

    async def _chunks(
        self, chat: Chat, scheduling: SchedulingParams, writer: StreamWriter, headers: dict[str, str]
    ) -> AsyncGenerator[bytes, None]:
        body, stops = chat.body, self._dialect.stops(chat.parameters)
        shown = self._dialect.shown(body)
        chunks = Chunks(self._dialect, self._envelope(body), stops, chat.names, bool(body.logprobs), shown)
        async with self.call(chat, scheduling) as call:
            call.checks.warn(headers)
            yield OPENED
            await call.write_to(writer, chunks.events)
            if body.stream_options is not None and body.stream_options.include_usage:
                yield event(chunks.usage(usage(call.choices)))


def _without_developer(message: Message) -> Message:
    return message.model_copy(update={"role": "system"}) if message.role == "developer" else message


def _variables(body: ChatBody) -> dict[str, Any]:
    """Return further variables of the template."""
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    return {**effort, **(body.chat_template_kwargs or {})}
