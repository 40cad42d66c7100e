"""What the router hands to the scheduler, and what can come back instead of text."""

from __future__ import annotations

from dataclasses import dataclass

from tgi_core.backend import Sampling, Want
from tgi_core.client.types import Stopping
from tgi_core.grammar import Grammar


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request. `input_ids` is the prompt; sampling carries a seed even when the client gave none."""

    input_ids: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping
    want: Want = Want()
    adapter: str | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may be, once the backend has promised its capacity. All in tokens."""

    max_input_tokens: int
    max_total_tokens: int


class SchedulerError(Exception):
    """A request ends without a result. The message may be shown to the client."""


class Overloaded(SchedulerError):
    """The server is full; try again later."""


class GenerationFailed(SchedulerError):
    """The device or the shard failed this request."""
