"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from tgi_core.wire.types import FinishReason
from tgi_router.bodies import Parameters
from tgi_router.completion_answer import Chunks, answer_json, final_json
from tgi_router.disconnect import answer_unless_left
from tgi_router.endpoints import FAILED, UNREADABLE, Endpoint
from tgi_router.errors import BatchSizeExceeded, RouterError, SuffixNotSupported, ValidationFailed
from tgi_router.extract import read_body
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Call, Inference, Result
from tgi_router.openai import Dialect, Envelope, usage
from tgi_router.openai_answers import CompletionEvents, CompletionFinal
from tgi_router.openai_bodies import CompletionBody
from tgi_router.openai_stream import open_stream
from tgi_router.request_examples import COMPLETIONS
from tgi_router.request_fields import Route
from tgi_router.sse import OPENED, event
from tgi_router.stream_writer import StreamWriter
from tgi_router.validation import Extras, Prompt

Warnings = dict[str, str]
"""Headers that name what the client does not get."""


class CompletionRoutes:
    """Handler of text completions."""

    def __init__(self, inference: Inference, headers: ComputeHeaders, dialect: Dialect) -> None:
        self._inference = inference
        self._headers = headers
        self._dialect = dialect

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoint."""
        return [
            Endpoint(
                "POST",
                "/v1/completions",
                self.completions,
                "OpenAI",
                body=CompletionBody,
                examples=COMPLETIONS,
                answer=CompletionFinal,
                events=CompletionEvents,
                done=True,
                errors=(*UNREADABLE, *FAILED),
            )
        ]

    async def completions(self, request: Request) -> Response:
        """Create a text completion.

        Compatible with OpenAI's completions: generates `n` texts for each of one or more prompts. With `stream`, the chunks of all
        texts are interleaved as they are generated, distinguished by `index`; the stream ends with `[DONE]`.
        """
        return await self.answer(request, await read_body(request, CompletionBody, self._inference.settings.payload_limit))

    async def answer(self, request: Request, body: CompletionBody) -> Response:
        """Create a completion for a parsed body."""
        scheduling = self._inference.scheduling(request)
        parameters, extras, warnings = self._prepare(body)
        prompts = tuple(map(self._prompt, body.prompt))
        call = self._inference.call(prompts, parameters, scheduling, streaming=bool(body.stream), extras=extras)
        if not body.stream:
            return await answer_unless_left(request, self._complete(call, body, parameters, warnings))
        characters = sum(len(prompt.text) for prompt in prompts)
        writer = StreamWriter.of(request.scope)
        headers = {**self._headers.stream(characters), **warnings}
        chunks = self._chunks(call, body, parameters, writer, headers)
        opening = open_stream(self._dialect, chunks, writer, headers)
        return await answer_unless_left(request, opening)

    def _prompt(self, given: str | list[int]) -> Prompt:
        """Return a prompt. The text of token ids is for `echo`; ids that are refused later have none."""
        if isinstance(given, str):
            return Prompt(given)
        limits, tokenizer = self._inference.limits, self._inference.model.tokenizer
        sound = len(given) <= limits.max_total_tokens and max(given, default=0) < tokenizer.vocab_size
        return Prompt(tokenizer.decode(given) if sound else "", ids=tuple(given))

    def _prepare(self, body: CompletionBody) -> tuple[Parameters, Extras, Warnings]:
        largest = self._inference.settings.max_client_batch_size
        try:
            warnings = self._dialect.warnings(Route.COMPLETIONS, body)
            if body.suffix is not None:
                raise SuffixNotSupported
            if len(body.prompt) > largest:
                flag = "" if self._dialect.strict else "; the server's --max-client-batch-size sets it"
                raise BatchSizeExceeded(f"{largest}{flag}")
            asked = None if self._dialect.strict else body.logprobs
            if self._nothing(body):
                if body.stream:
                    raise ValidationFailed("`max_tokens` == 0 is not supported when streaming tokens")
                body = body.model_copy(update={"max_tokens": 1})
            parameters = self._dialect.parameters(
                body, repetition_penalty=body.repetition_penalty, top_n_tokens=asked, grammar=self._dialect.grammar(body)
            )
            return parameters, self._extras(body, greedy=not parameters.do_sample), warnings
        except RouterError as error:
            self._inference.metrics.refused(error)
            raise

    def _nothing(self, body: CompletionBody) -> bool:
        """Whether only the prompt is wanted: OpenAI accepts `max_tokens: 0`, for `echo`. A token is generated and dropped."""
        return body.max_tokens == 0 and body.max_completion_tokens is None and not self._dialect.strict

    def _extras(self, body: CompletionBody, greedy: bool) -> Extras:
        """Return OpenAI's options, which TGI lacks. Once all `best_of` texts are complete, the `n` most likely are returned."""
        strict, best_of = self._dialect.strict, body.best_of
        extras = self._dialect.extras(body, not strict and body.logprobs is not None)
        if strict:
            return extras
        if body.echo and body.logprobs is not None:
            enabled = self._inference.settings.enable_prefill_logprobs
            extras = replace(extras, prompt_logprobs=_of_the_prompt(body, enabled))
        if best_of is None or best_of == extras.choices:
            return extras
        largest = self._inference.settings.max_best_of
        if best_of < extras.choices:
            raise ValidationFailed(f"`best_of` must be >= `n`. Given: {best_of} and {extras.choices}")
        if best_of > largest:
            raise ValidationFailed(f"`best_of` must be > 0 and <= {largest}. Given: {best_of}")
        if body.stream:
            raise ValidationFailed("`best_of` > `n` is not supported when streaming tokens")
        if greedy:
            raise ValidationFailed("you must use sampling when `best_of` is > 1")
        return replace(extras, choices=best_of, ranked=True)

    def _envelope(self) -> Envelope:
        return self._dialect.seal("cmpl", self._inference.model.name)

    def _shown(self, body: CompletionBody) -> tuple[bool, bool]:
        """Return whether to echo the prompt, and whether to include log probabilities."""
        return (False, False) if self._dialect.strict else (bool(body.echo), body.logprobs is not None)

    async def _complete(self, call: Call, body: CompletionBody, parameters: Parameters, warnings: Warnings) -> Response:
        async with call:
            results = self._dialect.ordered(await call.results())
        if self._nothing(body):
            results = [_emptied(result) for result in results]
        best = 1 if self._dialect.strict or body.n is None else body.n
        stops = self._dialect.stops(parameters)
        answer = answer_json(self._dialect, self._envelope(), results, stops, *self._shown(body), best, self._dialect.shown(body))
        headers = {**self._headers.complete(results), **warnings}
        call.checks.warn(headers)
        return Response(answer, media_type="application/json", headers=headers)

    async def _chunks(
        self, call: Call, body: CompletionBody, parameters: Parameters, writer: StreamWriter, headers: dict[str, str]
    ) -> AsyncGenerator[bytes, None]:
        chunks = Chunks(
            self._dialect, self._envelope(), self._dialect.stops(parameters), *self._shown(body), self._dialect.shown(body)
        )
        async with call:
            call.checks.warn(headers)
            yield OPENED
            await call.write_to(writer, chunks.events)
            if body.stream_options is not None and body.stream_options.include_usage and not self._dialect.strict:
                yield event(final_json(chunks.envelope, "", usage(call.choices)))


def _of_the_prompt(body: CompletionBody, enabled: bool) -> bool:
    """Return True: the prompt's log probabilities are requested. Raises ValidationFailed for what cannot be answered: backends return the
    log probability of each prompt token, but not the most likely tokens in its place."""
    if body.logprobs:
        raise ValidationFailed(
            f"`echo` needs `logprobs` to be 0, for the prompt's own tokens; others have none. Given: {body.logprobs}"
        )
    if body.stream:
        raise ValidationFailed("`echo` with `logprobs` is not supported when streaming tokens")
    if not enabled:
        raise ValidationFailed("`echo` with `logprobs` needs the server's --enable-prefill-logprobs")
    return True


def _emptied(result: Result) -> Result:
    """Return a result without its text."""
    text = replace(result.text, text="", generated_tokens=0, finish_reason=FinishReason.LENGTH)
    return replace(result, text=text, tokens=[], choice=replace(result.choice, finished=text))
