"""The scheduler's requests, options and errors: `GenerationRequest`, `SchedulingParams`, `SchedulerOptions`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tgi_core.backend import Capacity, OutputOptions, Request, RowFaultKind, Sampling
from tgi_core.blocks import UNLIMITED
from tgi_core.grammar import Cost, Grammar
from tgi_core.scheduler.prefix import ImageSpan, span_of_all
from tgi_core.wire.types import ShardRequest, Stopping


@dataclass(frozen=True, slots=True)
class SchedulingParams:
    """Who sent a request, and when it should run.

    Waiting requests of different `client`s take turns. Of two requests of one client, the one with the higher `priority` starts
    first unless it arrived much later (`SchedulerOptions.ageing_s`); an `urgent` one starts before those of other clients in the
    same way. Requests with different `salt` share no cached prefixes. `timeout_s` limits how long the request may take in all.
    """

    client: str = ""
    priority: int = 0
    urgent: bool = False
    salt: str = ""
    timeout_s: float | None = None


DEFAULT_SCHEDULING = SchedulingParams()


@dataclass(frozen=True, slots=True)
class GenerationRequest(ShardRequest):
    """A validated request: the shard's request, which the scheduler completes when it admits the row, and what only the scheduler
    needs.

    Until then, the tokens of `request` are the prompt, it has no blocks, and its id and take are 0. Sampling has a seed even if the
    client gave none. `grammar_cost` is the cost of compiling the grammar. `prediction`: tokens that the client expects in the answer.
    `image_spans`: where the images are among the tokens; one over all of them if tokens of a prompt see each other
    (`Capabilities.whole_prompts`), so that no step ends inside it, and its blocks serve no other prompt.
    """

    grammar_cost: Cost | None = None
    scheduling: SchedulingParams = DEFAULT_SCHEDULING
    prediction: tuple[int, ...] = ()
    image_spans: tuple[ImageSpan, ...] = ()

    @classmethod
    def of(
        cls,
        input_ids: tuple[int, ...],
        sampling: Sampling,
        stopping: Stopping,
        want: OutputOptions = OutputOptions(),
        adapter: str | None = None,
        grammar: Grammar | None = None,
        grammar_cost: Cost | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        prediction: tuple[int, ...] = (),
        images: tuple[bytes, ...] = (),
        image_spans: tuple[ImageSpan, ...] = (),
        whole_prompt: bool = False,
    ) -> GenerationRequest:
        """Create the request of a prompt; `whole_prompt`: its tokens see each other."""
        if whole_prompt:
            image_spans = (span_of_all(input_ids, image_spans),)
        request = Request(0, input_ids, len(input_ids), 0, (), 0, sampling, want, adapter=adapter)
        return cls(request, stopping, grammar, images, grammar_cost, scheduling, prediction, image_spans)

    @property
    def input_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt."""
        return self.request.tokens

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters."""
        return self.request.sampling

    @property
    def want(self) -> OutputOptions:
        """What is returned besides the tokens."""
        return self.request.want

    @property
    def adapter(self) -> str | None:
        """Name of the adapter, if any."""
        return self.request.adapter

    @property
    def seed(self) -> int | None:
        """The seed to report; None if decoding is greedy."""
        return self.sampling.seed if self.sampling.do_sample else None


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Options of the scheduling policy."""

    prefix_caching: bool = True
    ageing_s: float = 10.0
    """Seconds of waiting time that offset one level of priority between requests of the same client."""
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    """Maximum number of tokens of all waiting prompts."""
    waiting_served_ratio: float = 0.3
    """If the device cannot mix prefill and decode, running rows pause for new ones once there are this many waiting per running
    row …"""
    max_waiting_tokens: int = 20
    """… or this many steps have passed without a new row."""
    earlier_answers: bool = False
    """Whether rows get drafts from earlier answers, besides their own text."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request, in tokens, for the capacity of the backend: of its prompt, of prompt and answer together, of its answer,
    which has a limit of its own if the model has an encoder, and of an image that must run in one step."""

    max_input_tokens: int
    max_total_tokens: int
    max_new_tokens: int = UNLIMITED
    max_image_tokens: int = UNLIMITED

    @classmethod
    def of(cls, capacity: Capacity, longest: int, longest_prompt: int, chunking: bool, whole_images: bool = False) -> Limits:
        """The limits of a capacity, given the longest row and the longest prompt that its cache holds, whether prompts run in
        chunks, and whether images run in one step."""
        total = min(capacity.max_row_tokens, longest)
        prompt = min(total - 1, longest_prompt, UNLIMITED if chunking else capacity.max_step_tokens)
        answer = UNLIMITED if longest_prompt == UNLIMITED else total - longest_prompt
        return cls(prompt, total, answer, capacity.max_step_tokens if whole_images else UNLIMITED)

    @classmethod
    def least(cls, limits: Iterable[Limits]) -> Limits:
        """The strictest of each limit."""
        each = list(limits)
        return cls(
            min(one.max_input_tokens for one in each),
            min(one.max_total_tokens for one in each),
            min(one.max_new_tokens for one in each),
            min(one.max_image_tokens for one in each),
        )

    def room(self, prompt: int) -> int:
        """Maximum number of tokens of the answer to a prompt of that many tokens; 0 or less if the prompt is too long."""
        return min(self.max_total_tokens - prompt, self.max_new_tokens)

    def check(self, request: GenerationRequest) -> None:
        """Check that a request can ever fit. Raises ValueError."""
        prompt, answer = len(request.input_ids), request.stopping.max_new_tokens
        if not 1 <= prompt <= self.max_input_tokens:
            raise ValueError(f"the prompt has {prompt} tokens; it must have from 1 to {self.max_input_tokens}")
        if answer > self.max_new_tokens:
            raise ValueError(f"the answer may have {answer} tokens; the maximum is {self.max_new_tokens}")
        if answer < 1 or prompt + answer > self.max_total_tokens:
            raise ValueError(f"prompt and answer may have {prompt + answer} tokens; the maximum is {self.max_total_tokens}")
        longest = max((span.end - span.start for span in request.image_spans), default=0)
        if longest > self.max_image_tokens:
            raise ValueError(f"an image has {longest} tokens; the maximum is {self.max_image_tokens}")


class SchedulerError(Exception):
    """A request ended without a result. The message may be shown to the client."""


class Overloaded(SchedulerError):
    """The server is overloaded; retry after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(SchedulerError):
    """The request exceeded its time limit."""


class GenerationFailed(SchedulerError):
    """The device or the shard failed this request."""


class Stopped(SchedulerError):
    """The server is shutting down before the request is complete."""


class NotRead(SchedulerError):
    """The client did not read its results, and the buffer is full."""


class RequestFailed(GenerationFailed):
    """Only this request failed, and would most likely fail again; the shard is fine.

    `kind` is the failure of its row; None if its step was refused.
    """

    def __init__(self, message: str, kind: RowFaultKind | None = None) -> None:
        super().__init__(message)
        self.kind = kind
