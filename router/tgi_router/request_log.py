"""The outermost middleware: assigns each request an id and, with tracing, a span; logs its outcome in one line."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tgi_core.telemetry.request_record import RequestRecord, begin
from tgi_core.telemetry.traces import RequestSpan, Traces
from tgi_router.anthropic_errors import id_headers
from tgi_router.bodies import Parameters
from tgi_router.endpoints import HANDLER

_log = logging.getLogger(__name__)

_TGI_NAMES = {
    "info": "get_model_info",
    "models": "openai_get_model_info",
    "invocations": "sagemaker_compatibility",
    "vertex": "vertex_compatibility",
}
"""TGI's names for handlers whose names differ here."""

_LEVELS = {"dropped": logging.INFO, "generation": logging.ERROR, "incomplete": logging.ERROR}
"""Log level by failure; all other failures are client errors, logged as warnings."""


class RequestLog:
    """ASGI middleware. Every response has the request's id in `x-request-id`: the client's own if it sent a valid one."""

    def __init__(self, app: ASGIApp, traces: Traces | None = None) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = begin(headers.get("x-request-id"))
        span = self._traces.begin(headers) if self._traces is not None else None
        ids = id_headers(scope["path"], record.request_id)
        answer = _Answer(send, {**ids, **(span.headers if span is not None else {})})
        try:
            await self._app(scope, receive, answer.send)
        except Exception:  # noqa: BLE001  logged here, with the request's id, and answered
            _log.exception("an internal error ended a request")
            if answer.status is None:
                await PlainTextResponse("Internal Server Error", status_code=500)(scope, receive, answer.send)
        finally:
            _log_end(record, span, _name(scope), answer.status)


class _Answer:
    """Forwards a response with additional headers."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send = send
        self._headers = headers
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if self.status is None:
            self.status = message["status"]
            MutableHeaders(scope=message).update(self._headers)
        await self._send(message)


def _name(scope: Scope) -> str:
    """Return the name of the handler, never the path, which is client input."""
    name: str = scope.get(HANDLER, "unrouted")
    return _TGI_NAMES.get(name, name)


def _log_end(record: RequestRecord, span: RequestSpan | None, name: str, status: int | None) -> None:
    if span is not None:
        span.end(name, status or 499, record)
    if record.failure is None and not record.generations:
        return
    about = {"name": name, "request_id": record.request_id, **record.fields()}
    if record.failure is None:
        _log.info("Success", extra={"span": about})
    else:
        reason = record.failure if record.check is None else f"{record.failure}: {record.check}"
        _log.log(_LEVELS.get(record.failure, logging.WARNING), "Failed: %s", reason, extra={"span": about})


def loggable(parameters: Parameters) -> dict[str, object]:
    """Return what may be logged of parameters: numbers and booleans, the lengths of lists, and whether a text was given."""
    found: dict[str, object] = {}
    for name, value in parameters:
        if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
            found[name] = value
        elif isinstance(value, list):
            found[name] = len(value)
        elif value is not None:
            found[name] = True
    return found
