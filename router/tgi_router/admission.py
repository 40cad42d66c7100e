"""Admission control: rejects requests of an overloaded server by their heads, without a task, app layers or a log line each.

Requests that it cannot decide with certainty are left to the app, which rejects them with the same response.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from time import monotonic

from starlette.datastructures import Headers

from tgi_core.lifecycle import Lifecycle
from tgi_core.telemetry.request_record import request_id
from tgi_router.anthropic_errors import id_headers
from tgi_router.auth import ApiKey
from tgi_router.clients import Clients
from tgi_router.endpoints import Endpoint
from tgi_router.errors import ModelOverloaded, error_json, retry_headers
from tgi_router.inference import Inference
from tgi_router.openai import Dialect
from tgi_router.sse import event

_log = logging.getLogger(__name__)

_LEFT_TO_THE_APP = frozenset({b"origin", b"expect", b"x-forwarded-for", b"transfer-encoding"})
"""Requests with one of these headers are left to the app: their responses need more headers, or their client is not the peer."""
_LOG_EVERY_S = 1.0

HeaderList = list[tuple[bytes, bytes]]


class AdmissionControl:
    """Rejects requests in front of one app. `key` is the API key, if there is one."""

    def __init__(
        self, inference: Inference, lifecycle: Lifecycle, clients: Clients, answers: Mapping[bytes, bytes], key: str | None
    ) -> None:
        self._permits, self._metrics = inference.permits, inference.metrics
        self._lifecycle = lifecycle
        self._clients = clients
        self._answers = answers
        self._key = None if key is None else ApiKey(key)
        self._refused = 0
        self._logged_at = monotonic() - _LOG_EVERY_S

    @property
    def full(self) -> bool:
        """Whether no permits are free; only then can `refuse` reject a request."""
        return self._permits.full

    def refuse(self, path: bytes, peer: tuple[str, int] | None, headers: HeaderList, defaults: HeaderList) -> bytes | None:
        """Return the rejection of a POST, with the headers of all responses; None to leave the request to the app."""
        answer = self._answers.get(path)
        if answer is not None and not self._permits.full:
            self._permits.expect()
            return None
        if answer is None or not self._lifecycle.accepts or self._lifecycle.over or not self._plain(headers):
            return None
        scope = {"type": "http", "client": peer, "headers": headers}
        given = Headers(scope=scope)
        try:
            self._permits.check(self._clients.of(scope, given))
        except ModelOverloaded as error:
            self._note(error)
            ids = id_headers(path.decode(), request_id(given.get("x-request-id")))
            fields = {**retry_headers(error), **ids}
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
            return answer % b"".join([lines, *(b"%b: %b\r\n" % item for item in defaults)])
        return None

    def _plain(self, headers: HeaderList) -> bool:
        """Return whether the request has the right key and none of the headers that are left to the app."""
        if any(name in _LEFT_TO_THE_APP for name, _ in headers):
            return False
        return self._key is None or self._key.admits(headers)

    def _note(self, error: ModelOverloaded) -> None:
        self._metrics.refused(error)
        self._refused += 1
        now = monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            _log.warning("Failed: overloaded, %d requests rejected for lack of permits", self._refused)
            self._refused, self._logged_at = 0, now


def refusals(endpoints: Iterable[Endpoint], dialect: Dialect, stream_headers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return, by path, the rejection of a POST, with a placeholder for more headers. The first endpoint of a path takes precedence.
    With --strict-tgi, routes that may stream are excluded: the response depends on whether the body asks for a stream."""
    found: dict[bytes, bytes] = {}
    for endpoint in endpoints:
        path = endpoint.path.encode()
        if endpoint.method != "POST" or path in found or "{" in endpoint.path:
            continue
        if endpoint.generates and not (dialect.strict and endpoint.events is not None):
            answer = dialect.respond(endpoint.path, ModelOverloaded())
            found[path] = _wire(b"429 Too Many Requests", answer.raw_headers, bytes(answer.body))
        elif endpoint.events is not None and endpoint.answer is None:
            fields = [(name.encode(), value.encode()) for name, value in stream_headers.items()]
            fields += [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            found[path] = _wire(b"200 OK", fields, event(error_json(ModelOverloaded())))
    return found


def _wire(status: bytes, headers: HeaderList, body: bytes) -> bytes:
    kept = [(name, value) for name, value in headers if not name.startswith(b"retry-after") and name != b"content-length"]
    lines = b"".join(b"%b: %b\r\n" % item for item in (*kept, (b"content-length", b"%d" % len(body))))
    return (b"HTTP/1.1 %b\r\n%b" % (status, lines)).replace(b"%", b"%%") + b"%b\r\n" + body.replace(b"%", b"%%")
