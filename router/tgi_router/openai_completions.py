"""POST /v1/completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from tgi_core.client.types import GeneratedText, Token
from tgi_router.answers import CompletionEvents, CompletionFinal
from tgi_router.bodies import CompletionBody, Parameters
from tgi_router.disconnect import answer_unless_left
from tgi_router.endpoints import FAILED, UNREADABLE, Endpoint
from tgi_router.errors import BatchSizeExceeded, RouterError, SuffixNotSupported
from tgi_router.extract import read_body
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Call, Choice, Inference, Result, tokens_of
from tgi_router.json_text import dumps, quote
from tgi_router.openai import FINGERPRINT, Dialect, Envelope, usage, usage_of
from tgi_router.openai_stream import open_stream
from tgi_router.sse import OPENED, event
from tgi_router.stop_strings import StopFilter
from tgi_router.validation import Extras, Prompt


class CompletionRoutes:
    """The handler of completions."""

    def __init__(self, inference: Inference, headers: ComputeHeaders, dialect: Dialect) -> None:
        self._inference = inference
        self._headers = headers
        self._dialect = dialect

    def endpoints(self) -> list[Endpoint]:
        """The endpoint."""
        return [
            Endpoint(
                "POST",
                "/v1/completions",
                self.completions,
                body=CompletionBody,
                answer=CompletionFinal,
                events=CompletionEvents,
                done=True,
                errors=(*UNREADABLE, *FAILED),
            )
        ]

    async def completions(self, request: Request) -> Response:
        """One text per prompt, or `n`, whole or as one interleaved stream."""
        return await self.answer(request, await read_body(request, CompletionBody, self._inference.settings.payload_limit))

    async def answer(self, request: Request, body: CompletionBody) -> Response:
        """The same, for a body that has been read."""
        parameters, extras = self._prepare(body)
        prompts = tuple(Prompt(text) for text in body.prompt)
        call = self._inference.call(prompts, parameters, streaming=bool(body.stream), extras=extras)
        if not body.stream:
            return await answer_unless_left(request, self._complete(call, parameters))
        characters = sum(len(prompt) for prompt in body.prompt)
        opening = open_stream(self._dialect, self._chunks(call, body, parameters), self._headers.stream(characters))
        return await answer_unless_left(request, opening)

    def _prepare(self, body: CompletionBody) -> tuple[Parameters, Extras]:
        largest = self._inference.settings.max_client_batch_size
        try:
            if body.suffix is not None:
                raise SuffixNotSupported
            if len(body.prompt) > largest:
                raise BatchSizeExceeded(str(largest))
            parameters = self._dialect.parameters(body, repetition_penalty=body.repetition_penalty)
            return parameters, self._dialect.extras(body)
        except RouterError as error:
            self._inference.metrics.refused(error)
            raise

    def _envelope(self) -> Envelope:
        return self._dialect.seal("cmpl", self._inference.model.name)

    async def _complete(self, call: Call, parameters: Parameters) -> Response:
        async with call:
            results = self._dialect.ordered(await call.results())
        answer = _answer_json(self._dialect, self._envelope(), results, parameters)
        return Response(answer, media_type="application/json", headers=self._headers.complete(results))

    async def _chunks(self, call: Call, body: CompletionBody, parameters: Parameters) -> AsyncGenerator[bytes, None]:
        chunks = Chunks(self._dialect, self._envelope(), self._dialect.stops(parameters))
        async with call:
            yield OPENED
            async for choice, generation in call.generations():
                for token, ending in tokens_of(generation):
                    yield event(chunks.token(choice, token, ending))
            if body.stream_options is not None and body.stream_options.include_usage and not self._dialect.strict:
                yield event(_final_json(chunks.envelope, "", usage(call.choices)))


class Chunks:
    """The chunks of one stream."""

    def __init__(self, dialect: Dialect, envelope: Envelope, stops: Sequence[str]) -> None:
        self.envelope = envelope
        self._dialect = dialect
        self._filters: dict[int, StopFilter] = defaultdict(lambda: StopFilter(stops))

    def token(self, choice: Choice, token: Token, ending: GeneratedText | None) -> str:
        """A chunk with the text that a token adds. The last one of each text is shaped like a whole answer and tells the usage,
        as in TGI."""
        filter = self._filters[choice.index]
        text = filter.push("" if token.special else token.text) + ("" if ending is None else filter.finish())
        reason = self._dialect.completion_chunk_reason(None if ending is None else ending.finish_reason)
        shown = _choice_json(choice.index, text, reason)
        if ending is not None:
            return _final_json(self.envelope, shown, usage([choice]))
        return (
            f'{{"object":"text_completion","id":{quote(self.envelope.id)},"created":{self.envelope.created},"choices":[{shown}],'
            f'"model":{quote(self.envelope.model)},"system_fingerprint":{quote(FINGERPRINT)}}}'
        )


def _answer_json(dialect: Dialect, envelope: Envelope, results: Sequence[Result], parameters: Parameters) -> str:
    choices = [
        _choice_json(each.choice.index, dialect.text(each, parameters), dialect.finish_reason(each.text.finish_reason))
        for each in results
    ]
    return _final_json(envelope, ",".join(choices), usage_of(results))


def _final_json(envelope: Envelope, choices: str, tokens: dict[str, int]) -> str:
    return (
        f'{{"object":"text_completion","id":{quote(envelope.id)},"created":{envelope.created},"model":{quote(envelope.model)},'
        f'"system_fingerprint":{quote(FINGERPRINT)},"choices":[{choices}],"usage":{dumps(tokens)}}}'
    )


def _choice_json(index: int, text: str, reason: str | None) -> str:
    shown = "null" if reason is None else quote(reason)
    return f'{{"index":{index},"text":{quote(text)},"logprobs":null,"finish_reason":{shown}}}'
