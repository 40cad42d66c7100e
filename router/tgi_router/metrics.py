"""Prometheus metrics of the router, under TGI's names. One registry per app, no global state."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry

from tgi_core.scheduler.types import Limits
from tgi_core.telemetry.catalog import Instruments
from tgi_core.telemetry.logs import dropped_lines
from tgi_core.telemetry.request_record import Timings, current
from tgi_router.caller_names import failed_check
from tgi_router.errors import ModelOverloaded, RouterError
from tgi_router.exposition import expose
from tgi_router.generator import Generator


class Metrics:
    """The tgi_request_* family, and gauges of the queue and the batch."""

    def __init__(self, registry: CollectorRegistry, generator: Generator, limits: Limits) -> None:
        self.registry = registry
        make = Instruments(registry)
        self._count = make.counter("tgi_request_count")
        self._success = make.counter("tgi_request_success")
        self._failure = make.counter("tgi_request_failure")
        self._cancelled = make.counter("tgi_request_cancelled")
        self._shed = make.counter("tgi_request_shed")
        self._adapters = make.counter("tgi_request_adapter_count")
        for name in generator.info.capabilities.adapters:
            self._adapters.labels(name)
        self._durations(make)
        self._tokens(make, limits)
        make.gauge("tgi_queue_size", lambda: generator.snapshot().queued)
        make.gauge("tgi_batch_current_size", lambda: generator.snapshot().running)
        make.counted("tgi_log_lines_dropped", dropped_lines)
        self._for_endpoint_pickers(make, generator)

    def _for_endpoint_pickers(self, make: Instruments, generator: Generator) -> None:
        make.gauge("vllm:num_requests_waiting", lambda: generator.snapshot().queued)
        make.gauge("vllm:num_requests_running", lambda: generator.snapshot().running)
        adapters = generator.info.capabilities.adapters
        loaded = {"max_lora": str(len(adapters)), "running_lora_adapters": ",".join(adapters), "waiting_lora_adapters": ""}
        make.described("vllm:lora_requests_info", lambda: loaded, value=time.time())

    def _durations(self, make: Instruments) -> None:
        self._duration = make.histogram("tgi_request_duration")
        self._validation = make.histogram("tgi_request_validation_duration")
        self._queue = make.histogram("tgi_request_queue_duration")
        self._inference = make.histogram("tgi_request_inference_duration")
        self._per_token = make.histogram("tgi_request_mean_time_per_token_duration")
        self._first_token = make.histogram("tgi_request_time_to_first_token_duration")
        self._inter_token = make.histogram("tgi_request_inter_token_duration")

    def _tokens(self, make: Instruments, limits: Limits) -> None:
        total, longest = _linear(limits.max_total_tokens), _linear(limits.max_input_tokens)
        self._generated = make.histogram("tgi_request_generated_tokens", total)
        self._input = make.histogram("tgi_request_input_length", longest)
        self._max_new = make.histogram("tgi_request_max_new_tokens", total)
        self._skipped = make.summary("tgi_request_skipped_tokens")

    def asked(self, count: int = 1) -> None:
        """Count `count` requested generations; each must end in `succeeded` or `failed`."""
        self._count.inc(count)

    def admitted(self, input_length: int, max_new_tokens: int, adapter: str | None = None) -> None:
        """Count a request that passed validation. `adapter` is the name of a loaded adapter."""
        if adapter is not None:
            self._adapters.labels(adapter).inc()
        self._input.observe(input_length)
        self._max_new.observe(max_new_tokens)

    def first_tokens(self, seconds: float, more: int) -> None:
        """Record a generation's first step, `seconds` after the call, with `more` tokens beyond the first."""
        self._first_token.observe(seconds)
        self._skipped.observe(more)

    def next_tokens(self, seconds: float, more: int) -> None:
        """Record a further step, `seconds` after the last one, with `more` tokens beyond the first. Called for every token."""
        self._inter_token.observe(seconds)
        self._skipped.observe(more)

    def succeeded(self, timings: Timings, generated_tokens: int) -> None:
        """Count a complete generation."""
        self._success.inc()
        self._duration.observe(timings.total)
        self._validation.observe(timings.validation)
        self._queue.observe(timings.queue)
        self._inference.observe(timings.inference)
        self._per_token.observe(timings.per_token)
        self._generated.observe(generated_tokens)

    def failed(self, error: BaseException | None, count: int = 1) -> None:
        """Count incomplete generations: they ended with an error, because of a bug, or because the client disconnected."""
        err = error.failure if isinstance(error, RouterError) else "incomplete" if isinstance(error, Exception) else "dropped"
        self._failure.labels(err).inc(count)
        if err == "dropped":
            self._cancelled.inc(count)
        elif isinstance(error, ModelOverloaded):
            self._shed.inc(count)
        record = current()
        if record is not None:
            record.failure, record.check = err, failed_check(error)

    def refused(self, error: RouterError) -> None:
        """Count a request that was rejected before it became a generation."""
        self.asked()
        self.failed(error)

    def text(self) -> str:
        """Render all metrics for a scrape."""
        return expose(self.registry)


def _linear(largest: int) -> tuple[float, ...]:
    """Return TGI's 100 equal buckets."""
    return tuple(largest / 100 * step for step in range(1, 101))
