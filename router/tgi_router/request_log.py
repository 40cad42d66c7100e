"""The outermost layer of the app: gives each request an id and, with traces, a span; logs how it ended in one line."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tgi_core.telemetry.exchange import Exchange, begin
from tgi_core.telemetry.traces import RequestSpan, Traces
from tgi_router.bodies import Parameters
from tgi_router.endpoints import HANDLER

_log = logging.getLogger(__name__)

_TGI_NAMES = {
    "info": "get_model_info",
    "models": "openai_get_model_info",
    "invocations": "sagemaker_compatibility",
    "vertex": "vertex_compatibility",
}
"""TGI's names of handlers that have other names here."""

_LEVELS = {"dropped": logging.INFO, "generation": logging.ERROR, "incomplete": logging.ERROR}
"""The log level of each failure; other failures are the client's, and warnings."""


class RequestLog:
    """ASGI middleware. Every answer carries the request's id in `x-request-id`: the client's own if it sent one that is a word."""

    def __init__(self, app: ASGIApp, traces: Traces | None = None) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        exchange = begin(headers.get("x-request-id"))
        span = self._traces.begin(headers) if self._traces is not None else None
        answer = _Answer(send, {"x-request-id": exchange.request_id, **(span.headers if span is not None else {})})
        try:
            await self._app(scope, receive, answer.send)
        except Exception:  # noqa: BLE001  logged here, with the request's id, and answered
            _log.exception("an error in the server ended a request")
            if answer.status is None:
                await PlainTextResponse("Internal Server Error", status_code=500)(scope, receive, answer.send)
        finally:
            _log_end(exchange, span, _name(scope), answer.status)


class _Answer:
    """Passes an answer on, with more headers."""

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
    """The handler's, never the path, which is the client's."""
    name: str = scope.get(HANDLER, "unrouted")
    return _TGI_NAMES.get(name, name)


def _log_end(exchange: Exchange, span: RequestSpan | None, name: str, status: int | None) -> None:
    if span is not None:
        span.end(name, status or 499, exchange)
    if exchange.failure is None and not exchange.courses:
        return
    about = {"name": name, "request_id": exchange.request_id, **exchange.fields()}
    if exchange.failure is None:
        _log.info("Success", extra={"span": about})
    else:
        _log.log(_LEVELS.get(exchange.failure, logging.WARNING), "Failed: %s", exchange.failure, extra={"span": about})


def loggable(parameters: Parameters) -> dict[str, object]:
    """What may be logged of parameters: numbers and switches as they are, lists by their length, and whether a text was given."""
    found: dict[str, object] = {}
    for name, value in parameters:
        if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
            found[name] = value
        elif isinstance(value, list):
            found[name] = len(value)
        elif value is not None:
            found[name] = True
    return found
