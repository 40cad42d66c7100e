"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tgi_core.client.types import GeneratedText, Token
from tgi_router.bodies import CompletionBody, Parameters
from tgi_router.disconnect import answer_unless_left
from tgi_router.errors import BatchSizeExceeded, RouterError, SuffixNotSupported
from tgi_router.extract import read_body
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Call, Choice, Inference, Result, tokens_of
from tgi_router.json_text import dumps, quote
from tgi_router.openai import FINGERPRINT, FINISH_REASONS, Envelope, error_event_json, parameters_of, usage, usage_of
from tgi_router.sse import DONE, EventStream, event
from tgi_router.validation import Prompt


class CompletionRoutes:
    """The handler of completions."""

    def __init__(self, inference: Inference, headers: ComputeHeaders) -> None:
        self._inference = inference
        self._headers = headers

    def routes(self) -> list[Route]:
        """The routes, for the app."""
        return [Route("/v1/completions", self.completions, methods=["POST"])]

    async def completions(self, request: Request) -> Response:
        """One text per prompt, whole or as one interleaved stream."""
        body = await read_body(request, CompletionBody, self._inference.settings.payload_limit)
        parameters = self._prepare(body)
        if not body.stream:
            return await answer_unless_left(request, self._complete(body, parameters))
        characters = sum(len(prompt) for prompt in body.prompt)
        return EventStream(self._events(body, parameters), self._headers.stream(characters))

    def _prepare(self, body: CompletionBody) -> Parameters:
        largest = self._inference.settings.max_client_batch_size
        try:
            if body.suffix is not None:
                raise SuffixNotSupported
            if len(body.prompt) > largest:
                raise BatchSizeExceeded(str(largest))
            return parameters_of(body, repetition_penalty=body.repetition_penalty)
        except RouterError as error:
            self._inference.metrics.refused(error)
            raise

    def _call(self, body: CompletionBody, parameters: Parameters) -> Call:
        prompts = tuple(Prompt(text) for text in body.prompt)
        return self._inference.call(prompts, parameters, streaming=bool(body.stream), logprobs=False)

    def _envelope(self) -> Envelope:
        return Envelope.seal("cmpl", self._inference.model.name)

    async def _complete(self, body: CompletionBody, parameters: Parameters) -> Response:
        async with self._call(body, parameters) as call:
            results = await call.results()
        answer = _answer_json(self._envelope(), results)
        return Response(answer, media_type="application/json", headers=self._headers.complete(results))

    async def _events(self, body: CompletionBody, parameters: Parameters) -> AsyncGenerator[bytes, None]:
        envelope = self._envelope()
        try:
            async with self._call(body, parameters) as call:
                async for choice, generation in call.generations():
                    for token, ending in tokens_of(generation):
                        yield event(_chunk_json(envelope, choice, token, ending))
        except RouterError as error:
            yield event(error_event_json(error))
        yield DONE


def _answer_json(envelope: Envelope, results: Sequence[Result]) -> str:
    choices = [_choice_json(each.choice.index, each.text.text, each.text) for each in results]
    return _final_json(envelope, ",".join(choices), usage_of(results))


def _chunk_json(envelope: Envelope, choice: Choice, token: Token, ending: GeneratedText | None) -> str:
    """A chunk of a stream. The last one of each prompt is shaped like a whole answer and tells the usage, as in TGI."""
    text = _choice_json(choice.index, "" if token.special else token.text, ending)
    if ending is not None:
        return _final_json(envelope, text, usage([choice]))
    return (
        f'{{"object":"text_completion","id":{quote(envelope.id)},"created":{envelope.created},"choices":[{text}],'
        f'"model":{quote(envelope.model)},"system_fingerprint":{quote(FINGERPRINT)}}}'
    )


def _final_json(envelope: Envelope, choices: str, tokens: dict[str, int]) -> str:
    return (
        f'{{"object":"text_completion","id":{quote(envelope.id)},"created":{envelope.created},"model":{quote(envelope.model)},'
        f'"system_fingerprint":{quote(FINGERPRINT)},"choices":[{choices}],"usage":{dumps(tokens)}}}'
    )


def _choice_json(index: int, text: str, ending: GeneratedText | None) -> str:
    """OpenAI's null and "stop", where TGI streams "" and "eos_token"."""
    reason = "null" if ending is None else quote(FINISH_REASONS[ending.finish_reason])
    return f'{{"index":{index},"text":{quote(text)},"logprobs":null,"finish_reason":{reason}}}'
