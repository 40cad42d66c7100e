"""What the router counts and measures, under TGI's names. One registry per app, no global state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tgi_core.scheduler.types import Limits
from tgi_core.telemetry.batches import DURATION_BUCKETS
from tgi_router.errors import RouterError
from tgi_router.exposition import expose
from tgi_router.generator import Generator

FAILURES = ("overloaded", "validation", "template", "incomplete", "generation", "dropped")
"""Values of the label `err`; no string from a client ever becomes one."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a generation went, in seconds."""

    total: float
    validation: float
    queue: float
    inference: float
    per_token: float


class Metrics:
    """The tgi_request_* family, and gauges of the queue and the batch."""

    def __init__(self, registry: CollectorRegistry, generator: Generator, limits: Limits) -> None:
        self.registry = registry
        self._count = Counter("tgi_request_count", "Generations asked for.", registry=self.registry)
        self._success = Counter("tgi_request_success", "Generations completed.", registry=self.registry)
        self._failure = Counter("tgi_request_failure", "Generations not completed.", ["err"], registry=self.registry)
        for err in FAILURES:
            self._failure.labels(err)
        self._histograms(limits)
        self._gauge("tgi_queue_size", "Requests that wait.", lambda: generator.snapshot().queued)
        self._gauge("tgi_batch_current_size", "Requests in the batch.", lambda: generator.snapshot().running)

    def _histograms(self, limits: Limits) -> None:
        total, longest = _linear(limits.max_total_tokens), _linear(limits.max_input_tokens)
        self._duration = self._histogram("duration", "Seconds from the call to its answer.")
        self._validation = self._histogram("validation_duration", "Seconds until queued.")
        self._queue = self._histogram("queue_duration", "Seconds in the queue.")
        self._inference = self._histogram("inference_duration", "Seconds in the batch.")
        self._per_token = self._histogram("mean_time_per_token_duration", "Seconds in the batch per token.")
        self._first_token = self._histogram("time_to_first_token_duration", "Seconds from the call to its first token.")
        self._inter_token = self._histogram("inter_token_duration", "Seconds between the tokens of a generation.")
        self._generated = self._histogram("generated_tokens", "Tokens generated.", total)
        self._input = self._histogram("input_length", "Tokens of the prompt.", longest)
        self._max_new = self._histogram("max_new_tokens", "Tokens allowed.", total)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = DURATION_BUCKETS) -> Histogram:
        return Histogram(f"tgi_request_{name}", text, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, text: str, read: Callable[[], int]) -> None:
        Gauge(name, text, registry=self.registry).set_function(read)

    def asked(self, count: int = 1) -> None:
        """So many generations were asked for; each must end in `succeeded` or `failed`."""
        self._count.inc(count)

    def admitted(self, input_length: int, max_new_tokens: int) -> None:
        """A request passed validation."""
        self._input.observe(input_length)
        self._max_new.observe(max_new_tokens)

    def first_token(self, seconds: float) -> None:
        """The first token came so long after the call."""
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """Another token came so long after the last one."""
        self._inter_token.observe(seconds)

    def succeeded(self, timings: Timings, generated_tokens: int) -> None:
        """A generation is complete."""
        self._success.inc()
        self._duration.observe(timings.total)
        self._validation.observe(timings.validation)
        self._queue.observe(timings.queue)
        self._inference.observe(timings.inference)
        self._per_token.observe(timings.per_token)
        self._generated.observe(generated_tokens)

    def failed(self, error: BaseException | None, count: int = 1) -> None:
        """Generations ended without an answer: told why, by a fault of our own, or because the client left."""
        err = error.failure if isinstance(error, RouterError) else "incomplete" if isinstance(error, Exception) else "dropped"
        self._failure.labels(err).inc(count)

    def refused(self, error: RouterError) -> None:
        """A call ended before it became a generation."""
        self.asked()
        self.failed(error)

    def text(self) -> str:
        """The scrape."""
        return expose(self.registry)


def _linear(largest: int) -> tuple[float, ...]:
    """TGI's hundred equal buckets."""
    return tuple(largest / 100 * step for step in range(1, 101))
