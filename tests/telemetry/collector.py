"""A collector of traces in this process, behind a real gRPC socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(TraceServiceServicer):
    """Keeps every span that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.received = b""
        """All messages, as they came."""
        self.endpoint = ""
        self._lock = threading.Lock()

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        """The one method of the service."""
        with self._lock:
            self.received += request.SerializeToString()
            for resource in request.resource_spans:
                self.resources.append({item.key: item.value.string_value for item in resource.resource.attributes})
                self.spans.extend(span for scope in resource.scope_spans for span in scope.spans)
        return ExportTraceServiceResponse()

    def named(self, name: str) -> list[Span]:
        """The spans of a name, in the order of their starts."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start_time_unix_nano)

    def children(self, parent: Span) -> list[Span]:
        """The spans right below another, in the order of their starts."""
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        assert all(span.trace_id == parent.trace_id for span in found)
        return sorted(found, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))


def attributes(span: Span) -> dict[str, Any]:
    """A span's attributes."""
    return {item.key: getattr(item.value, str(item.value.WhichOneof("value"))) for item in span.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
