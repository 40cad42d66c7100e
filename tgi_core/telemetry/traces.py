"""Traces over OTLP: one span per HTTP request with TGI's name of the handler, and child spans for the phases of each generation.

    generate_stream
    ├── validate    from the call until queued
    ├── queue       until its first step
    ├── prefill     until its first token
    └── decode      until its last token

OpenTelemetry is imported only with --otlp-endpoint. Tracing does no work per token: child spans are created when the request ends,
from the timestamps of its `GenerationTimes`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tgi_core import __version__
from tgi_core.errors import StartupError
from tgi_core.telemetry.request_record import GenerationTimes, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

LAST_SECONDS = 2.0
"""Seconds to wait at shutdown for an unresponsive collector."""

_HEADERS = ("traceparent", "tracestate")


class Traces:
    """Exports spans to a collector in batches from a background thread, so that an unresponsive collector delays nothing."""

    def __init__(self, provider: TracerProvider, exporter: SpanExporter) -> None:
        self._provider = provider
        self._exporter = exporter
        self._tracer = provider.get_tracer("tgi_router", __version__)

    def begin(self, headers: Mapping[str, str]) -> RequestSpan:
        """Start the span of a request, as a child of the span in its `traceparent` header, if any."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {name: headers[name] for name in _HEADERS if name in headers}
        parent = TraceContextTextMapPropagator().extract(carrier)
        return RequestSpan(self._tracer, self._tracer.start_span("request", parent, kind=SpanKind.SERVER))

    def close(self) -> None:
        """Export pending spans, waiting up to two seconds for an unresponsive collector."""
        limit = threading.Timer(LAST_SECONDS, self._exporter.shutdown)
        limit.start()
        self._provider.shutdown()
        limit.cancel()


class RequestSpan:
    """The span of one request."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._span = span
        self._context: Context = set_span_in_context(span)
        self._epoch = time.time_ns() - time.monotonic_ns()
        self.headers: dict[str, str] = {}
        """W3C headers that identify this span, for responses and outgoing requests."""
        TraceContextTextMapPropagator().inject(self.headers, self._context)

    def end(self, name: str, status: int, record: RequestRecord) -> None:
        """End the span now and name it after its handler."""
        from opentelemetry.trace import StatusCode

        now = time.monotonic()
        self._span.update_name(name)
        for key, value in record.fields().items():
            if value is not None:
                self._span.set_attribute(key, _attribute(value))
        self._span.set_attribute("request_id", record.request_id)
        self._span.set_attribute("http.response.status_code", status)
        if record.failure is not None or status >= 500:
            self._span.set_status(StatusCode.ERROR, record.failure)
            self._span.set_attribute("error.type", record.failure or str(status))
        for times in record.generations:
            for phase, start, end in phases(times, now):
                self._phase(phase, start, end, times)
        self._span.end(self._nanoseconds(now))

    def _phase(self, name: str, start: float, end: float, times: GenerationTimes) -> None:
        attributes = {"prefill": {"input_length": times.input_length}, "decode": {"generated_tokens": times.generated_tokens}}
        span = self._tracer.start_span(name, self._context, attributes=attributes.get(name), start_time=self._nanoseconds(start))
        span.end(self._nanoseconds(end))

    def _nanoseconds(self, moment: float) -> int:
        return self._epoch + int(moment * 1e9)


def open_traces(endpoint: str | None, service_name: str) -> Traces | None:
    """Open traces to the collector at `endpoint` (`http://HOST:PORT` or `https://…`); None without one. Raises StartupError if
    OpenTelemetry is not installed."""
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as error:
        raise StartupError(
            f"--otlp-endpoint {endpoint}: traces need OpenTelemetry, which is not installed; run pip install 'tgi-core[otlp]'"
        ) from error

    provider = TracerProvider(ALWAYS_ON, Resource.create({"service.name": service_name}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint, insecure=not endpoint.startswith("https://"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Traces(provider, exporter)


def phases(times: GenerationTimes, now: float) -> Iterator[tuple[str, float, float]]:
    """Yield name, start and end of each phase of a generation; an unfinished phase ends now."""
    stations = (times.asked, times.queued, times.batched, times.first_token, times.last_token)
    for name, start, end in zip(("validate", "queue", "prefill", "decode"), stations, stations[1:], strict=False):
        if start is None:
            return
        if name != "decode" or times.generated_tokens > 1:
            yield name, start, now if end is None else max(start, end)


def _attribute(value: object) -> str | int:
    return value if isinstance(value, str | int) else json.dumps(value)
