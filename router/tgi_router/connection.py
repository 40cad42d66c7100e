"""One HTTP connection: uvicorn's, with the limits that it lacks.

A head is bounded in bytes, in headers and in time, a body in time and in its framing, an idle connection in time, and so is a client
that does not read. What two servers could read differently is refused. The limit of a body's size is the app's, which answers in the
dialect of the route.
"""

from __future__ import annotations

import logging
import re
import socket
import struct
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from tgi_core.config import Settings
from tgi_router.outlet import Outlet

_log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 1 << 16
MAX_HEADERS = 100
MAX_PIPELINED = 64
"""Requests that may have come while one is answered."""
LINGER_S = 5.0
"""How long a client may go on sending what nobody will read, so that it gets to read why."""
_WRITE_HIGH, _WRITE_LOW = 1 << 16, 7 << 13
"""Unsent bytes at which a handler must wait, and from which it goes on: a client that reads 8 KiB is not stalled."""

_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


@dataclass(slots=True)
class ConnectionPolicy:
    """What the connections of a server share. Times in seconds."""

    head_s: float
    body_s: float
    keep_alive_s: float
    stall_s: float
    body_bytes: int
    max_descriptor: int | None = None
    """A connection with a higher file descriptor is refused, so that the server keeps some for its own work."""
    closing: bool = False
    """From now on each connection ends with the answer under way."""

    @classmethod
    def of(cls, settings: Settings) -> ConnectionPolicy:
        """What the settings say."""
        return cls(
            settings.header_timeout,
            settings.body_timeout,
            settings.keep_alive_timeout,
            settings.stream_stall_timeout,
            settings.payload_limit,
        )


class _Waiting(Enum):
    """What a connection waits for, if for anything."""

    HEAD = "head"
    BODY = "body"
    END = "end"
    """The client's last bytes, which nobody reads."""


class _Refused(Exception):
    """Ends the parsing of a request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Connection(HttpToolsProtocol):
    """A connection that keeps to a policy."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        policy: ConnectionPolicy,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.timeout_keep_alive = policy.keep_alive_s  # type: ignore[assignment]  # uvicorn's is in whole seconds
        self._policy = policy
        self._waiting: _Waiting | None = None
        self._timer: TimerHandle | None = None
        self._stall: TimerHandle | None = None
        self._received = 0
        """Bytes of the head, or of the body with its framing."""
        self._in_body = self._deaf = False
        self._begun = self._crossed = False
        """Whether a request has begun whose head is not complete, and whether the last bytes held the end of a head or of a body."""
        self._upgrade: bytes | None = None
        """The method of a request that asks for another protocol."""
        self._refusal: _Refused | None = None
        self._writers: list[Callable[[], None]] = []

    # the life of a connection

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Refuse it if file descriptors run out."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(_WRITE_HIGH, _WRITE_LOW)
        highest, descriptor = self._policy.max_descriptor, transport.get_extra_info("socket").fileno()
        if highest is not None and descriptor > highest:
            self._deaf = True
            transport.write(b"".join(_answer(_Refused(503, "Too many connections"))))
            transport.close()  # without lingering, which would take up the descriptor
        else:
            self._wait_for(_Waiting.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the handler, and forget the timers."""
        self._wait_for(None)
        self._unset_keepalive_if_required()
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        super().pause_writing()
        self._watch_stall()

    def resume_writing(self) -> None:
        """It has read again."""
        super().resume_writing()
        waiting, self._writers = self._writers, []
        for callback in waiting:
            self.loop.call_soon(callback)
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once the client has read again."""
        self._writers.append(callback)

    def _watch_stall(self) -> None:
        if self._stall is None:
            self._stall = self.loop.call_later(self._policy.stall_s, self._stalled)

    def _stalled(self) -> None:
        _log.info("a client has not read for %.0f s; its connection is closed", self._policy.stall_s)
        self.reset()

    def reset(self) -> None:
        """End at once. What is not sent yet is dropped: closed in the ordinary way, the kernel would go on trying."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a while."""
        super().timeout_keep_alive_handler()
        self._watch_unsent()

    def be_last(self) -> None:
        """Let the answer under way say that it is the last one here."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """End, after the answer under way if there is one."""
        super().shutdown()
        self._watch_unsent()

    def _watch_unsent(self) -> None:
        """A transport that is closed waits for its client to read, for ever if need be."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._watch_stall()

    # what comes in

    def data_received(self, data: bytes) -> None:
        """Parse; then see what is still missing."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._crossed = False
        try:
            self._feed(data)
        except HttpParserError:
            refusal, self._refusal = self._refusal, None
            self._refuse(refusal or _Refused(400, "Invalid HTTP request received."))
        else:
            self._received = int(self._begun) if self._crossed else self._received + len(data)
            self._look_for_the_rest()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if self._upgrade is None:
                raise HttpParserError from upgrade
            # The parser leaves the body to the other protocol, which is not spoken here: it is HTTP/1.1 that goes on, as is the
            # server's right.
            method, self._upgrade = self._upgrade, None
            self.parser = HttpRequestParser(self)
            self._feed(self._head_without_upgrade(method) + data[upgrade.args[0] :])

    def _head_without_upgrade(self, method: bytes) -> bytes:
        head = [method, b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name not in (b"upgrade", b"connection", b"http2-settings"):
                head += [name, b": ", value, b"\r\n"]
        return b"".join([*head, b"\r\n"])

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._begun = True

    def on_headers_complete(self) -> None:
        """Judge the head, then start the request."""
        try:
            self._check_head()
        except _Refused as error:
            self._refusal = error
            raise
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._upgrade = self.parser.get_method()
            return
        super().on_headers_complete()
        Outlet(self.cycle, self.when_writable)
        self.headers = []  # what follows a chunked body is no header of this request
        self._begun, self._in_body, self._crossed = False, True, True
        self._wait_for(None)
        if self._policy.closing:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The body is there."""
        if self._upgrade is not None:
            return
        super().on_message_complete()
        self._in_body, self._crossed = False, True
        self._wait_for(None)

    def _check_head(self) -> None:
        hosts, size = 0, len(self.url)
        version = self.parser.get_http_version()
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"host":
                hosts += 1
                if _HOST.fullmatch(value) is None:
                    raise _Refused(400, "Host is not valid")
            elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version != "1.1"):
                raise _Refused(400, "Transfer-Encoding must be chunked")
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            raise _Refused(431, "The request's head is too large")
        if hosts > 1 or (not hosts and version == "1.1"):
            raise _Refused(400, "Host must be given once")
        if version not in ("1.1", "1.0"):
            raise _Refused(400, "Only HTTP/1.1 is spoken")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _Refused(400, "Too many requests at once")

    def _look_for_the_rest(self) -> None:
        if self._in_body:
            self._look_for_the_body()
        elif self._received > MAX_HEAD_BYTES:
            self._refuse(_Refused(431, "The request's head is too large"))
        elif self._received:
            self._wait_for(_Waiting.HEAD)
        elif self.cycle is not None and self.cycle.response_complete:  # it was answered before all of it had come
            self._wait_idle()

    def _look_for_the_body(self) -> None:
        if self.cycle.response_complete:
            self._wait_for(_Waiting.END)
            return
        if self._received > 2 * self._policy.body_bytes + MAX_HEAD_BYTES:  # chunks of a byte each take six
            self._refuse(_Refused(413, "Failed to buffer the request body: length limit exceeded"))
        else:
            self._wait_for(_Waiting.BODY)

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_unsent()
        elif self._in_body and self.cycle.response_complete:
            self._wait_for(_Waiting.END)
        elif self._received and not self._in_body:
            self._wait_for(_Waiting.HEAD)

    # waiting

    def _wait_for(self, what: _Waiting | None) -> None:
        """Time counts from the moment at which the waiting began."""
        if what is self._waiting:
            return
        self._waiting = what
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if what is not None:
            policy = self._policy
            seconds = {_Waiting.HEAD: policy.head_s, _Waiting.BODY: policy.body_s, _Waiting.END: LINGER_S}[what]
            self._timer = self.loop.call_later(seconds, self._overdue, what)

    def _wait_idle(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _overdue(self, what: _Waiting) -> None:
        if self.flow.read_paused:  # it is us who do not read
            self._timer = self.loop.call_later(LINGER_S, self._overdue, what)
        elif what is _Waiting.END:
            self.reset()
        elif what is _Waiting.HEAD and not self._received:
            self.transport.close()
        else:
            self._refuse(_Refused(408, f"The request's {what.value} took too long"))

    # refusing

    def _refuse(self, refusal: _Refused) -> None:
        """Answer, if no other answer is under way, and end the connection. Nothing that still comes is read."""
        self._deaf = True
        self._wait_for(None)
        cycle, busy = self.cycle, self.cycle is not None and not self.cycle.response_complete
        if self.pipeline or (busy and self._in_body and cycle.response_started):
            self.reset()
            return
        if busy and not self._in_body:  # the request before this one
            cycle.keep_alive = False
            return
        if busy:
            cycle.disconnected = True  # its handler stops, and what it still says is not sent
            cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write(b"".join(_answer(refusal)))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._wait_for(_Waiting.END)


def _answer(refusal: _Refused) -> Iterator[bytes]:
    text = str(refusal).encode()
    yield STATUS_LINE[refusal.status]
    if refusal.status == 503:
        yield b"retry-after: 1\r\nretry-after-ms: 1000\r\n"
    yield b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(text)
    yield text
