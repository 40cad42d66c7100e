"""From prompts to generations: permits, validation, submission to the scheduler, and metrics that count each call exactly
once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import getrandbits
from time import monotonic
from types import TracebackType
from typing import Self

from starlette.requests import Request

from tgi_core.client.grammars import Release
from tgi_core.config import Settings
from tgi_core.scheduler.stream import GenerationStream
from tgi_core.scheduler.types import GenerationRequest, NotRead, SchedulerError, SchedulingParams, Stopped
from tgi_core.telemetry.request_record import GenerationTimes, Timings, current
from tgi_core.wire.types import GeneratedText, Generation, PromptToken, Token
from tgi_router.bodies import Parameters
from tgi_router.errors import Incomplete, IncompleteStream, ModelOverloaded, ShardFailed, ShuttingDown, ValidationFailed
from tgi_router.generator import Generator
from tgi_router.grammars import reporting_errors
from tgi_router.metrics import Metrics
from tgi_router.permits import Permits
from tgi_router.request_log import loggable
from tgi_router.response_checks import ResponseChecks
from tgi_router.scheduler_errors import router_error
from tgi_router.scheduling_headers import SchedulingHeaders
from tgi_router.served_model import ServedModel
from tgi_router.stream_writer import StreamWriter
from tgi_router.thread_pool import ThreadPool
from tgi_router.tokenizing import Tokenizing
from tgi_router.validation import NO_EXTRAS, Extras, Prompt, Validator, effective_limits


@dataclass(slots=True)
class Choice:
    """A text being generated: sample number `sample` of its prompt. The extra samples of a best_of are not `counted`."""

    index: int
    prompt: Prompt
    request: GenerationRequest
    stream: GenerationStream
    sample: int = 0
    counted: bool = True
    first_at: float | None = None
    last_at: float | None = None
    """Arrival times of the first and the latest token."""
    finished: GeneratedText | None = None
    timings: Timings | None = None
    """Breakdown of the time spent, once finished."""


TakeOne = Callable[[Choice, Generation], bool]
"""Takes the result of a step for a choice; returns whether it can take more immediately."""

Render = Callable[[Choice, Generation], bytes]
"""Renders the result of a step for a choice as events; empty if there is nothing to send yet."""


@dataclass(slots=True)
class Result:
    """A complete text with its tokens."""

    choice: Choice
    text: GeneratedText
    timings: Timings
    tokens: list[Token] = field(default_factory=list)
    prompt: tuple[PromptToken, ...] = ()


class Inference:
    """State and services shared by all routes that generate."""

    def __init__(
        self,
        settings: Settings,
        model: ServedModel,
        generator: Generator,
        metrics: Metrics,
        threads: ThreadPool,
        tokenizing: Tokenizing,
        scheduling: SchedulingHeaders,
    ) -> None:
        self.settings = settings
        self.model = model
        self.generator = generator
        self.threads = threads
        self.tokenizing = tokenizing
        self.limits = effective_limits(settings, generator.limits)
        self.metrics = metrics
        self.permits = Permits(settings.max_concurrent_requests)
        self.validator = Validator(settings, model, self.limits, generator.info, tokenizing, generator.tokenize_images)
        self.calls: set[Call] = set()
        """Calls in progress."""
        self.ended = False
        self._scheduling = scheduling

    def end(self) -> None:
        """End all calls and accept no new ones because the server is shutting down."""
        self.ended = True
        for call in list(self.calls):
            call.abort()

    def check_room(self, request: Request) -> None:
        """Check that a permit is available for this client. Raises ModelOverloaded."""
        try:
            self.permits.check(self._scheduling.client(request))
        except ModelOverloaded as error:
            self.metrics.refused(error)
            raise

    def scheduling(self, request: Request) -> SchedulingParams:
        """Return a request's client and scheduling headers. Handlers call this before any work. Raises ValidationFailed."""
        try:
            return self._scheduling.read(request)
        except ValidationFailed as error:
            self.metrics.refused(error)
            raise

    def call(
        self,
        prompts: tuple[Prompt, ...],
        parameters: Parameters,
        scheduling: SchedulingParams,
        *,
        streaming: bool,
        extras: Extras = NO_EXTRAS,
        gate: asyncio.Barrier | None = None,
    ) -> Call:
        """Create a call for `async with`. Calls that share a `gate` are submitted once all are valid."""
        return Call(self, prompts, parameters, scheduling, streaming, extras, gate)


class Call:
    """A group of generations that are admitted together and end together.

    Entering acquires permits, validates and submits; raises RouterError. Exiting cancels running generations, returns the permits
    and counts every generation once, however the block ended.
    """

    def __init__(
        self,
        inference: Inference,
        prompts: tuple[Prompt, ...],
        parameters: Parameters,
        scheduling: SchedulingParams,
        streaming: bool,
        extras: Extras,
        gate: asyncio.Barrier | None,
    ) -> None:
        self._inference = inference
        self._gate = gate
        self._metrics = inference.metrics
        self._prompts = prompts
        self._parameters = parameters
        self._scheduling = scheduling
        self._streaming = streaming
        self._extras = extras
        self._generations = len(prompts) * extras.choices
        self._permits = 0
        self._started = monotonic()
        self._queued = self._started
        self._tasks: list[asyncio.Task[None]] = []
        self._grammars: list[Release] = []
        self.choices: list[Choice] = []
        self.checks = ResponseChecks(inference.validator.grammars)

    async def __aenter__(self) -> Self:
        self._metrics.asked(self._generations)
        self._inference.calls.add(self)
        try:
            await self._admit()
        except BaseException as error:
            self._end(error)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end(error)

    def abort(self) -> None:
        """End the call because the server is shutting down."""
        for choice in self.choices:
            choice.stream.abort(Stopped("the server is shutting down"))

    async def _admit(self) -> None:
        inference, parameters = self._inference, self._parameters
        inference.validator.check_best_of(parameters, self._streaming)
        best_of = max(parameters.best_of or 1, 1)
        permits = best_of * self._generations
        await inference.permits.take(self._scheduling.client, permits, wait=self._gate is None)
        self._permits = permits
        validate = inference.validator.validate
        valid = [await validate(prompt, parameters, self._extras, self._scheduling) for prompt in self._prompts]
        requests = [each.request for each in valid]
        self.checks.add(each.grammar for each in valid)
        await self._prepare(requests)
        if self._gate is not None:
            await self._gate.wait()
        self._queued = monotonic()
        for prompt, request in zip(self._prompts, requests, strict=True):
            self._metrics.admitted(len(request.input_ids), request.stopping.max_new_tokens, request.adapter)
            for sample in range(best_of * self._extras.choices):
                self._submit(prompt, _sample_of(request, sample, parameters.seed), sample)

    async def _prepare(self, requests: list[GenerationRequest]) -> None:
        """Compile the grammars before their requests are queued. Raises RouterError."""
        for request in requests:
            if request.grammar is not None and request.grammar_cost is not None:
                with reporting_errors():
                    self._grammars.append(await self._inference.generator.prepare(request.grammar, request.grammar_cost))

    def _submit(self, prompt: Prompt, request: GenerationRequest, sample: int) -> None:
        if self._inference.ended:
            raise ShuttingDown
        try:
            stream = self._inference.generator.submit(request)
        except SchedulerError as error:
            raise router_error(error) from error
        stream.on_backpressure.append(lambda stalled: self._reader_stalled(stream, stalled))
        counted = sample < self._extras.choices
        self.choices.append(Choice(len(self.choices), prompt, request, stream, sample, counted))

    def _reader_stalled(self, stream: GenerationStream, stalled: bool) -> None:
        """Suspend or resume the permit of a generation whose client does not read. If too many are suspended, one is ended."""
        permits = self._inference.permits
        if stalled:
            permits.suspend(self._scheduling.client, stream, lambda: stream.abort(NotRead("the client read too slowly")))
        else:
            permits.resume(stream)

    def _end(self, error: BaseException | None) -> None:
        """Count the end of the call, only here: it succeeded if all its texts are complete, whatever happened after that."""
        self._inference.calls.discard(self)
        for task in self._tasks:
            task.cancel()
        for choice in self.choices:
            choice.stream.cancel()
            self._inference.permits.resume(choice.stream)
        while self._grammars:
            self._grammars.pop()()
        self._inference.permits.give_back(self._scheduling.client, self._permits)
        self._permits = 0
        self._record()
        if not self.choices or any(choice.finished is None for choice in self.choices):
            self._metrics.failed(error, self._generations)
            return
        for choice in self.choices:
            if choice.counted and choice.finished is not None and choice.timings is not None:
                self._metrics.succeeded(choice.timings, choice.finished.generated_tokens)

    def _record(self) -> None:
        """Record the call for the log line and the trace of its request."""
        record = current()
        if record is not None:
            generations = [self._times(choice) for choice in self.choices if choice.counted]
            record.parameters = loggable(self._parameters)
            record.generations.extend(generations or [GenerationTimes(self._started)])

    def _times(self, choice: Choice) -> GenerationTimes:
        waited = _waited(choice.stream)
        return GenerationTimes(
            asked=self._started,
            queued=self._queued,
            batched=None if waited is None else self._queued + waited,
            first_token=choice.first_at,
            last_token=choice.last_at,
            input_length=len(choice.request.input_ids),
            generated_tokens=0 if choice.finished is None else choice.finished.generated_tokens,
            seed=choice.request.seed,
            timings=choice.timings,
        )

    async def write_to(self, writer: StreamWriter, render: Render) -> None:
        """Write results as they are generated. Under backpressure, they wait in the streams, which are bounded. Raises
        RouterError."""
        writer.listeners = [choice.stream.resume for choice in self.choices]
        await self._pour(lambda choice, generation: writer.write(render(choice, generation)))

    async def _pour(self, take: TakeOne) -> None:
        """Pass results to `take` in the order in which they are generated. Raises RouterError."""
        if len(self.choices) == 1:
            await self._pour_one(self.choices[0], take)
            return
        self._tasks = [asyncio.create_task(self._pour_one(choice, take)) for choice in self.choices]
        await asyncio.gather(*self._tasks)

    async def _pour_one(self, choice: Choice, take: TakeOne) -> None:
        withheld: list[Generation] = []

        def noted(generation: Generation) -> bool:
            if generation.fault is not None:
                raise ShardFailed(generation.fault.message)
            if self.checks.apply_to(choice.request, generation.finished):
                withheld.append(generation)
                return True
            self._note(choice, generation)
            return take(choice, generation)

        try:
            await choice.stream.pour(noted)
        except SchedulerError as error:
            raise router_error(error) from error
        for generation in withheld:  # the last result, which makes the text complete
            if generation.finished is not None:
                await self.checks.verify(choice.request, generation.finished)
            self._note(choice, generation)
            take(choice, generation)
        if choice.finished is None:
            raise IncompleteStream if self._streaming else Incomplete

    def _note(self, choice: Choice, generation: Generation) -> None:
        """Record metrics of a result on arrival."""
        now = monotonic()
        if generation.tokens and choice.counted:
            more = len(generation.tokens) - generation.steps
            if choice.last_at is None:
                choice.first_at = now
                self._metrics.first_tokens(now - self._started, more)
            else:
                self._metrics.next_tokens((now - choice.last_at) / generation.steps, more)
            choice.last_at = now
        if generation.finished is not None:
            choice.finished = generation.finished
            choice.timings = self._timings(choice, generation.finished, now)

    def _timings(self, choice: Choice, text: GeneratedText, now: float) -> Timings:
        total, validation = now - self._started, self._queued - self._started
        queue = _waited(choice.stream) or 0.0
        inference = max(total - validation - queue, 0.0)
        return Timings(total, validation, queue, inference, inference / max(text.generated_tokens, 1))

    async def results(self) -> list[Result]:
        """Wait for all texts and return them in the order in which they finished. Raises RouterError."""
        tokens: list[list[Token]] = [[] for _ in self.choices]
        prompts: list[tuple[PromptToken, ...]] = [() for _ in self.choices]
        done: list[Result] = []

        def take(choice: Choice, generation: Generation) -> bool:
            index = choice.index
            tokens[index].extend(generation.tokens)
            prompts[index] += generation.prompt
            if generation.finished is not None and choice.timings is not None:
                done.append(Result(choice, generation.finished, choice.timings, tokens[index], prompts[index]))
            return True

        await self._pour(take)
        return done


def tokens_of(generation: Generation) -> Iterator[tuple[Token, GeneratedText | None]]:
    """Return the tokens of a step's result; the last token of a text comes with its ending."""
    last = len(generation.tokens) - 1
    for place, token in enumerate(generation.tokens):
        yield token, generation.finished if place == last else None


def in_order(results: list[Result]) -> list[Result]:
    """Return results in the order of their prompts."""
    return sorted(results, key=lambda result: result.choice.index)


def mean_logprob(result: Result) -> float:
    """Return the mean log probability of a text's tokens."""
    return sum(token.logprob for token in result.tokens) / max(len(result.tokens), 1)


def _sample_of(request: GenerationRequest, sample: int, seed: int | None) -> GenerationRequest:
    """Return the request of a further sample, with a seed derived from the client's, if given, so that it is repeatable."""
    if sample == 0:
        return request
    sampling = replace(request.sampling, seed=getrandbits(64) if seed is None else (seed + sample) % 2**64)
    return replace(request, request=replace(request.request, sampling=sampling))


def _waited(stream: GenerationStream) -> float | None:
    """Return the seconds in the queue; None while it waits. Measured with the stream's clock, which may differ from the call's."""
    return None if stream.started_at is None else max(stream.started_at - stream.queued_at, 0.0)
