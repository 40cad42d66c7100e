"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tgi_core.client.types import FinishReason, Token
from tgi_router.bodies import ChatBody, Parameters
from tgi_router.disconnect import answer_unless_left
from tgi_router.errors import RouterError, TemplateFailed, ToolFailed, ValidationFailed
from tgi_router.extract import read_body
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Call, Inference, Result, tokens_of
from tgi_router.json_text import dumps, quote, shortest
from tgi_router.openai import FINGERPRINT, FINISH_REASONS, Envelope, error_event_json, parameters_of, usage, usage_of
from tgi_router.sse import DONE, EventStream, event
from tgi_router.validation import Prompt


class ChatRoutes:
    """The handler of chat completions."""

    def __init__(self, inference: Inference, headers: ComputeHeaders) -> None:
        self._inference = inference
        self._headers = headers
        self._model = inference.model

    def routes(self) -> list[Route]:
        """The routes, for the app."""
        return [Route("/v1/chat/completions", self.chat_completions, methods=["POST"])]

    async def chat_completions(self, request: Request) -> Response:
        """One answer to a conversation, whole or as a stream of chunks."""
        body = await read_body(request, ChatBody, self._inference.settings.payload_limit)
        if not body.stream:
            return await answer_unless_left(request, self._complete(body))
        parameters, prompt = await self._prepare(body)
        return EventStream(self._events(body, parameters, prompt), self._headers.stream(len(prompt.text)))

    async def _prepare(self, body: ChatBody) -> tuple[Parameters, Prompt]:
        """What precedes the generation; a stream has not started yet, so that its errors have a status."""
        try:
            _check_tools(body)
            parameters = _parameters(body)
            return parameters, await self._render(body)
        except RouterError as error:
            self._inference.metrics.refused(error)
            raise

    async def _render(self, body: ChatBody) -> Prompt:
        template = self._model.chat_template
        if template is None:
            raise TemplateFailed("template not found")
        characters = sum(len(message.text) for message in body.messages)
        text = await self._inference.workers.run(characters, template.render, body.messages)
        return Prompt(text, add_special_tokens=False)

    def _call(self, body: ChatBody, parameters: Parameters, prompt: Prompt) -> Call:
        return self._inference.call((prompt,), parameters, streaming=bool(body.stream), logprobs=bool(body.logprobs))

    def _envelope(self, body: ChatBody) -> Envelope:
        """The client's name for the model is echoed, whatever it is, unless it is TGI's placeholder."""
        return Envelope.seal("chatcmpl", self._model.name if body.model is None or body.model == "tgi" else body.model)

    async def _complete(self, body: ChatBody) -> Response:
        parameters, prompt = await self._prepare(body)
        async with self._call(body, parameters, prompt) as call:
            [result] = await call.results()
        answer = _answer_json(self._envelope(body), result, bool(body.logprobs))
        return Response(answer, media_type="application/json", headers=self._headers.complete_one(result))

    async def _events(self, body: ChatBody, parameters: Parameters, prompt: Prompt) -> AsyncGenerator[bytes, None]:
        chunks = Chunks(self._envelope(body), bool(body.logprobs))
        try:
            async with self._call(body, parameters, prompt) as call:
                async for _, generation in call.generations():
                    for token, ending in tokens_of(generation):
                        yield event(chunks.token(token, None if ending is None else ending.finish_reason))
                if body.stream_options is not None and body.stream_options.include_usage:
                    yield event(chunks.usage(usage(call.choices)))
        except RouterError as error:
            yield event(error_event_json(error))
        yield DONE


class Chunks:
    """The chunks of one stream; all that repeats is rendered once."""

    def __init__(self, envelope: Envelope, logprobs: bool) -> None:
        self._head = (
            f'{{"object":"chat.completion.chunk","id":{quote(envelope.id)},"created":{envelope.created},'
            f'"model":{quote(envelope.model)},"system_fingerprint":{quote(FINGERPRINT)},"choices":['
        )
        self._logprobs = logprobs

    def token(self, token: Token, ending: FinishReason | None) -> str:
        """A chunk with the text that a token adds; special tokens add none."""
        text = '""' if token.special else quote(token.text)
        logprobs = dumps(_logprobs([token])) if self._logprobs else "null"
        reason = "null" if ending is None else quote(FINISH_REASONS[ending])
        return (
            f'{self._head}{{"index":0,"delta":{{"role":"assistant","content":{text}}},'
            f'"logprobs":{logprobs},"finish_reason":{reason}}}],"usage":null}}'
        )

    def usage(self, tokens: dict[str, int]) -> str:
        """The chunk without a choice that ends a stream on demand."""
        return f'{self._head}],"usage":{dumps(tokens)}}}'


def _check_tools(body: ChatBody) -> None:
    if body.tools is not None and _grammar(body) is not None:
        raise ToolFailed("Grammar and tools are mutually exclusive")
    if body.tools and body.tool_choice != "none":
        raise ToolFailed('tools are not supported yet; send `tool_choice`: "none" or leave `tools` out')


def _grammar(body: ChatBody) -> dict[str, Any] | None:
    """The response format, unless it is OpenAI's way of asking for none."""
    return None if body.response_format is None or body.response_format.get("type") == "text" else body.response_format


def _parameters(body: ChatBody) -> Parameters:
    if isinstance(body.logit_bias, dict) and body.logit_bias:
        raise ValidationFailed("`logit_bias` is not supported")
    return parameters_of(body, top_n_tokens=body.top_logprobs, grammar=_grammar(body))


def _answer_json(envelope: Envelope, result: Result, logprobs: bool) -> str:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": result.text.text},
        "logprobs": _logprobs(result.tokens) if logprobs else None,
        "finish_reason": FINISH_REASONS[result.text.finish_reason],
    }
    return dumps(
        {
            "object": "chat.completion",
            "id": envelope.id,
            "created": envelope.created,
            "model": envelope.model,
            "system_fingerprint": FINGERPRINT,
            "choices": [choice],
            "usage": usage_of([result]),
        }
    )


def _logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
    return {
        "content": [
            {
                "token": token.text,
                "logprob": shortest(token.logprob),
                "top_logprobs": [{"token": top.text, "logprob": shortest(top.logprob)} for top in token.top],
            }
            for token in tokens
        ]
    }
