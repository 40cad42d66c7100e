"""TGI's native routes: POST /, /generate and /generate_stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from tgi_core.wire.types import Candidate, GeneratedText, Generation, PromptToken, Token
from tgi_router.answers import GenerateResponse, NativeEvents
from tgi_router.bodies import CompatGenerateBody, GenerateBody
from tgi_router.disconnect import answer_unless_left
from tgi_router.endpoints import FAILED, UNREADABLE, Endpoint
from tgi_router.errors import IncompleteStream, ModelOverloaded, RouterError, StreamRuleBroken, error_json
from tgi_router.extract import read_body
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Call, Choice, Inference, Result, in_order, mean_logprob
from tgi_router.json_text import number, quote
from tgi_router.request_examples import COMPAT, GENERATE, STREAM
from tgi_router.request_fields import WARNING
from tgi_router.sse import EventStream, event
from tgi_router.stream_writer import StreamWriter
from tgi_router.validation import Prompt


class NativeRoutes:
    """Handlers of native requests."""

    def __init__(self, inference: Inference, headers: ComputeHeaders) -> None:
        self._inference = inference
        self._headers = headers
        self._limit = inference.settings.payload_limit

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        errors = (*UNREADABLE, *FAILED)
        return [
            Endpoint(
                "POST",
                "/",
                self.compat_generate,
                "TGI",
                body=CompatGenerateBody,
                examples=COMPAT,
                answer=list[GenerateResponse],
                events=NativeEvents,
                errors=errors,
            ),
            Endpoint(
                "POST",
                "/generate",
                self.generate,
                "TGI",
                body=GenerateBody,
                examples=GENERATE,
                answer=GenerateResponse,
                errors=errors,
            ),
            Endpoint(
                "POST",
                "/generate_stream",
                self.generate_stream,
                "TGI",
                body=GenerateBody,
                examples=STREAM,
                events=NativeEvents,
                errors=(*UNREADABLE, 503),
            ),
        ]

    async def compat_generate(self, request: Request) -> Response:
        """Generate text, with an optional stream.

        With `stream`, behaves like `/generate_stream`; otherwise like `/generate`, with the response wrapped in a list of one. The
        text begins with the prompt unless `return_full_text` is false, or the model is an encoder-decoder.
        """
        return await self.answer(request, await read_body(request, CompatGenerateBody, self._limit))

    async def answer(self, request: Request, body: CompatGenerateBody) -> Response:
        """Generate text for a parsed body. As in TGI, an encoder-decoder's text does not begin with its prompt by itself."""
        full = body.parameters.return_full_text
        if full is None:
            full = not self._inference.model.is_encoder_decoder
        body = body.model_copy(update={"parameters": body.parameters.model_copy(update={"return_full_text": full})})
        if body.stream:
            return await self._stream(request, body)
        return await answer_unless_left(request, self._complete(request, body, "[{}]"))

    async def generate(self, request: Request) -> Response:
        """Generate text.

        Responds once the text is complete. `details` adds the tokens and the finish reason. Response headers report the cost of the
        request; `x-total-time` and the other times are in milliseconds.
        """
        body = await read_body(request, GenerateBody, self._limit)
        return await answer_unless_left(request, self._complete(request, body, "{}"))

    async def generate_stream(self, request: Request) -> Response:
        """Generate text as a stream.

        Sends one event per token; the last event also has the complete text. An error after the stream has begun is an event with
        TGI's error object. So is the error of an overloaded server, with status 200.
        """
        try:
            self._inference.check_room(request)
        except ModelOverloaded as error:
            return Response(event(error_json(error)), media_type="text/event-stream", headers=self._headers.stream(0))
        return await self._stream(request, await read_body(request, GenerateBody, self._limit))

    async def _complete(self, request: Request, body: GenerateBody, frame: str) -> Response:
        async with self._call(request, body, streaming=False) as call:
            best, others = _best(in_order(await call.results()))
        answer = frame.replace("{}", _answer_json(best, others, body))
        headers = self._headers.complete_one(best)
        call.checks.warn(headers)
        return Response(answer, media_type="application/json", headers=headers)

    async def _stream(self, request: Request, body: GenerateBody) -> EventStream:
        writer, headers = StreamWriter.of(request.scope), self._headers.stream(len(body.inputs))
        shape = body.parameters.grammar
        if shape is not None:  # the headers precede the validation of a native stream
            warning = await self._inference.validator.grammars.warning(shape.given(), self._inference.settings.strict_tgi)
            headers |= {WARNING: warning} if warning else {}
        return EventStream(self._events(request, body, writer), writer, headers)

    async def _events(self, request: Request, body: GenerateBody, writer: StreamWriter) -> AsyncGenerator[bytes, None]:
        try:
            async with self._call(request, body, streaming=True) as call:
                await call.write_to(writer, _Events(body).of)
        except RouterError as error:
            yield event(error_json(error))
            if isinstance(error, StreamRuleBroken):  # TGI then also reports that the stream is incomplete
                yield event(error_json(IncompleteStream()))

    def _call(self, request: Request, body: GenerateBody, streaming: bool) -> Call:
        scheduling = self._inference.scheduling(request)
        return self._inference.call((Prompt(body.inputs, markdown=True),), body.parameters, scheduling, streaming=streaming)


def _best(results: Sequence[Result]) -> tuple[Result, list[Result]]:
    """Return the result with the highest mean log probability (the first among equals), and the others."""
    best = max(results, key=mean_logprob)
    return best, [result for result in results if result is not best]


def _answer_json(best: Result, others: Sequence[Result], body: GenerateBody) -> str:
    text = quote(_full_text(best.text, body))
    if not (body.parameters.details or body.parameters.decoder_input_details):
        return f'{{"generated_text":{text}}}'
    samples = [f'{{"generated_text":{quote(_full_text(each.text, body))},{_sequence_json(each, "")}}}' for each in others]
    best_of = f',"best_of_sequences":[{",".join(samples)}]' if samples else ""
    return f'{{"generated_text":{text},"details":{{{_sequence_json(best, best_of)}}}}}'


def _sequence_json(result: Result, best_of: str) -> str:
    """Render the fields that all sequences have, in TGI's order."""
    prefill = ",".join(_prompt_token_json(token) for token in result.prompt)
    tokens = ",".join(_token_json(token) for token in result.tokens)
    tops = ",".join(_top_json(token) for token in result.tokens)
    top_tokens = f',"top_tokens":[{tops}]' if any(token.top for token in result.tokens) else ""
    return (
        f'"finish_reason":"{result.text.finish_reason.value}","generated_tokens":{result.text.generated_tokens},'
        f'"seed":{_or_null(result.choice.request.seed)},"prefill":[{prefill}],"tokens":[{tokens}]{best_of}{top_tokens}'
    )


class _Events:
    """Renders the events of one stream."""

    def __init__(self, body: GenerateBody) -> None:
        self._body = body
        self._index = 0

    def of(self, choice: Choice, generation: Generation) -> bytes:
        """Render one event per token."""
        events = []
        last = len(generation.tokens) - 1
        for place, token in enumerate(generation.tokens):
            self._index += 1
            ending = generation.finished if place == last else None
            events.append(_event_json(self._index, token, ending, choice, self._body))
        return event("\n\ndata: ".join(events)) if events else b""


def _event_json(index: int, token: Token, ending: GeneratedText | None, choice: Choice, body: GenerateBody) -> str:
    """Render one event of a stream; `ending` is given with the last token."""
    top = f',"top_tokens":{_top_json(token)}' if token.top else ""
    if ending is None:
        return f'{{"index":{index},"token":{_token_json(token)}{top},"generated_text":null,"details":null}}'
    text = quote(_full_text(ending, body))
    details = _stream_details_json(ending, choice) if body.parameters.details else "null"
    return f'{{"index":{index},"token":{_token_json(token)}{top},"generated_text":{text},"details":{details}}}'


def _stream_details_json(ending: GeneratedText, choice: Choice) -> str:
    return (
        f'{{"finish_reason":"{ending.finish_reason.value}","generated_tokens":{ending.generated_tokens},'
        f'"seed":{_or_null(choice.request.seed)},"input_length":{len(choice.request.input_ids)}}}'
    )


def _token_json(token: Token | Candidate) -> str:
    special = "true" if token.special else "false"
    return f'{{"id":{token.id},"text":{quote(token.text)},"logprob":{number(token.logprob)},"special":{special}}}'


def _top_json(token: Token) -> str:
    return f"[{','.join(_token_json(candidate) for candidate in token.top)}]"


def _prompt_token_json(token: PromptToken) -> str:
    return f'{{"id":{token.id},"text":{quote(token.text)},"logprob":{number(token.logprob)}}}'


def _full_text(text: GeneratedText, body: GenerateBody) -> str:
    return body.inputs + text.text if body.parameters.return_full_text else text.text


def _or_null(value: int | None) -> str:
    return "null" if value is None else str(value)
