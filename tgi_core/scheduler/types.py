"""What the router hands to the scheduler, and what can come back instead of text."""

from __future__ import annotations

from dataclasses import dataclass

from tgi_core.backend import OutputOptions, RowFaultKind, Sampling
from tgi_core.grammar import Cost, Grammar
from tgi_core.wire.types import Stopping


@dataclass(frozen=True, slots=True)
class SchedulingParams:
    """Who sent a request, and when it should run.

    Waiting requests of different `client`s take turns. Of two requests of one client, the one with the higher `priority` starts first
    unless it arrived much later (`SchedulerOptions.ageing_s`); an `urgent` one starts before those of other clients in the same way.
    Requests with different `salt` share no cached prefixes. `timeout_s` limits how long the request may take in all.
    """

    client: str = ""
    priority: int = 0
    urgent: bool = False
    salt: str = ""
    timeout_s: float | None = None


DEFAULT_SCHEDULING = SchedulingParams()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request. `input_ids` is the prompt; sampling carries a seed even when the client gave none. `grammar_cost` is what
    its grammar takes to compile."""

    input_ids: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping
    want: OutputOptions = OutputOptions()
    adapter: str | None = None
    grammar: Grammar | None = None
    grammar_cost: Cost | None = None
    scheduling: SchedulingParams = DEFAULT_SCHEDULING

    @property
    def seed(self) -> int | None:
        """The seed to report: None when no token is drawn at random."""
        return self.sampling.seed if self.sampling.do_sample else None


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How a scheduler chooses, within what the backend has promised."""

    prefix_caching: bool = True
    ageing_s: float = 10.0
    """A client's request of priority p goes before one of p - 1 that has waited less than so many seconds longer."""
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    """Tokens of the prompts that wait."""
    waiting_served_ratio: float = 0.3
    """Where the device cannot mix, running rows pause for new ones once those that wait are so many per running one."""
    max_waiting_tokens: int = 20
    """… or once so many steps have passed without a new one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may be, once the backend has promised its capacity. All in tokens."""

    max_input_tokens: int
    max_total_tokens: int


class SchedulerError(Exception):
    """A request ends without a result. The message may be shown to the client."""


class Overloaded(SchedulerError):
    """The server is full; try again in `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(SchedulerError):
    """The request took longer than its client allowed."""


class GenerationFailed(SchedulerError):
    """The device or the shard failed this request."""


class Stopped(SchedulerError):
    """The server ends before the request has."""


class NotRead(SchedulerError):
    """Its results were not taken, and there was no more room for them."""


class RequestFailed(GenerationFailed):
    """The shard lives, and this request alone is at fault: another try would most likely fail the same way.

    `kind` says what happened to its row, None where its step was refused.
    """

    def __init__(self, message: str, kind: RowFaultKind | None = None) -> None:
        super().__init__(message)
        self.kind = kind
