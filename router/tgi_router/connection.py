"""One HTTP connection: uvicorn's protocol with the limits that it lacks.
It limits the bytes, headers and receive time of a request head, the receive time and framing overhead of a body, the idle time of a
connection, the time for which a client does not read, and the number of pipelined requests. Ambiguous requests, which two servers
could parse differently, are rejected. The app enforces the size of a body, since it responds in the dialect of the route.
"""

from __future__ import annotations

import logging
import socket
import struct
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from httptools import HttpParserError
from uvicorn.config import Config
from uvicorn.server import ServerState

from tgi_router.admission_protocol import AdmissionProtocol
from tgi_router.client_presence import Presence
from tgi_router.connection_policy import ConnectionPolicy
from tgi_router.extract import when_read
from tgi_router.lingering_close import AnswerTransport, Lingering, half_close
from tgi_router.rejection import MAX_HEAD_BYTES, Refused, check_head, too_large
from tgi_router.stream_writer import StreamWriter

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 5.0
_WRITE_HIGH, _WRITE_LOW = 1 << 16, 7 << 13
"""Write buffer limits in bytes: a handler pauses above the high one and resumes below the low one. A client that reads 8 KiB
is not stalled."""

_UNSENT = socket.TCP_NOTSENT_LOWAT
"""Limits the unsent bytes in the kernel too: by default it would buffer megabytes and hide a client that does not read."""


class _Waiting(Enum):
    """What a connection is waiting to receive."""

    HEAD = "head"
    BODY = "body"


class Connection(AdmissionProtocol):
    """A connection that enforces a policy."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        policy: ConnectionPolicy,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, policy=policy)
        self.timeout_keep_alive = policy.keep_alive_s  # type: ignore[assignment]  # uvicorn's is in whole seconds
        self._waiting: _Waiting | None = None
        self._timer: TimerHandle | None = None
        self._stall: TimerHandle | None = None
        self._received = 0
        """Bytes received of the current head, or of the current body with its framing."""
        self._in_body = self._deaf = self._over = self._ended = False
        """Whether a body is being received; input is discarded; the last response has been written; the client has half-closed."""
        self._lingering = Lingering(self.loop, self.reset)
        self._presence: Presence | None = None
        """Probes for a disconnect while the connection is not read."""
        self._begun = self._crossed = False
        """Whether a head is incomplete, and whether the bytes just parsed contained the end of a head or of a body."""
        self._refusal: Refused | None = None
        self._writers: list[Callable[[], None]] = []

    # lifecycle

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Set the socket's options and the buffer limits, and wait for the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(_WRITE_HIGH, _WRITE_LOW)
        own = transport.get_extra_info("socket")
        own.setsockopt(socket.IPPROTO_TCP, _UNSENT, _WRITE_HIGH)
        # asyncio does it only if the listener names its protocol; without it, each answer on a kept connection waits 40 ms for an ACK
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wait_for(_Waiting.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the handlers and cancel the timers."""
        self._wait_for(None)
        self._unset_keepalive_if_required()
        self._lingering.end()
        if self._presence is not None:
            self._presence.end()
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)

    def abandon(self, cycle: RequestResponseCycle) -> None:
        """Abandon a request and drop its buffered body."""
        super().abandon(cycle)
        self._policy.bodies.drop(cycle)

    def pause_writing(self) -> None:
        """Apply backpressure and start the stall timer."""
        super().pause_writing()
        self._watch_stall()

    def resume_writing(self) -> None:
        """Resume waiting writers and cancel the stall timer."""
        super().resume_writing()
        waiting, self._writers = self._writers, []
        for callback in waiting:
            self.loop.call_soon(callback)
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the write buffer has drained below its low limit."""
        self._writers.append(callback)

    def _watch_stall(self) -> None:
        if self._stall is None:
            self._stall = self.loop.call_later(self._policy.stall_s, self._stalled)

    def _stalled(self) -> None:
        _log.info("closing a connection whose client has not read for %.0f s", self._policy.stall_s)
        self.reset()

    def reset(self) -> None:
        """Reset the connection. Drops unsent bytes, which the kernel would keep trying to send after an ordinary close."""
        own = self.transport.get_extra_info("socket")
        if own.fileno() >= 0:  # else it was lost meanwhile
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._watch_unsent()

    def be_last(self) -> None:
        """Make the response in progress the last one of this connection."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close the connection, after the response in progress if there is one."""
        super().shutdown()
        self._watch_unsent()

    def _watch_unsent(self) -> None:
        """Start the stall timer for unsent bytes: a closing transport would wait for its client forever."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._watch_stall()

    # receiving

    def data_received(self, data: bytes) -> None:
        """Parse input, or discard it after the last response."""
        self._lingering.hear(len(data))
        if not self._deaf:
            self._unset_keepalive_if_required()
            self.unparsed += data
            self.parse_in_turn()

    def take(self, piece: bytes) -> bool:
        """Parse `piece`, then update the timers for what is still missing. Return whether to go on parsing."""
        if self._deaf:
            return False
        self._crossed = False
        try:
            self.feed(piece)
        except HttpParserError:
            refusal, self._refusal = self._refusal, None
            self._refuse(refusal or Refused(400, "Invalid HTTP request received."))
        else:
            self._received = int(self._begun) if self._crossed else self._received + len(piece)
            self._look_for_the_rest()
        return not self._deaf

    def on_message_begin(self) -> None:
        """Note the beginning of a head."""
        super().on_message_begin()
        self._begun = True

    def on_headers_complete(self) -> None:
        """Check the head, then start the request."""
        try:
            check_head(self.url, self.headers, self.parser.get_http_version())
        except Refused as error:
            self._refusal = error
            raise
        if self.refused_at_once():
            if not self.parser.should_keep_alive():  # once the received part of its body is parsed
                self.loop.call_soon(self._end)
        else:
            super().on_headers_complete()
            if self.offered is not None:
                return
            self._equip()
        self.headers = []  # trailers of a chunked body are not headers of this request
        self._begun, self._in_body, self._crossed = False, True, True
        self._wait_for(None)
        if self._policy.closing:
            self.cycle.keep_alive = False

    def _equip(self) -> None:
        """Give the request its transport, its stream writer and the callback that drops its body."""
        self.cycle.transport = AnswerTransport(self.transport, self._end)  # type: ignore[assignment]
        StreamWriter(self.cycle, self.transport, self.when_writable)
        when_read(self.cycle.scope, partial(self._policy.bodies.drop, self.cycle))

    def on_body(self, body: bytes) -> None:
        """Buffer a part of the body, unless its request is over."""
        cycle = self.cycle
        if not (self._deaf or cycle.response_complete or cycle.disconnected):
            super().on_body(body)
            self._policy.bodies.grow(cycle, len(body), lambda: self._give_up(cycle))

    def _give_up(self, cycle: RequestResponseCycle) -> None:
        """Give up a body because unfinished bodies exceed the server's buffer limit. The response is deferred to the next event
        loop iteration, since this may be called while the body is being parsed."""
        cycle.disconnected = True
        self.loop.call_soon(self._refuse_body, cycle)

    def _refuse_body(self, cycle: RequestResponseCycle) -> None:
        if cycle not in self.unanswered():
            return
        if cycle.response_started or cycle is not self.cycle:
            self.reset()
        else:
            self.abandon_last()
            self._refuse(Refused(503, "The server holds too many unfinished request bodies"))

    def on_message_complete(self) -> None:
        """Complete the body."""
        super().on_message_complete()
        if self.offered is not None:
            return
        self._in_body, self._crossed = False, True
        self._wait_for(None)
        self._lingering.end()
        self._policy.bodies.complete(self.cycle)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle a half-close: complete requests still get responses, provided that the client has not disconnected."""
        if self._ended:
            return True
        self.catch_up()
        if self._in_body and self.cycle in self.unanswered():
            self.abandon_last()
        asked = self.unanswered()
        if not asked or self._over:
            return False
        asked[-1].keep_alive = False
        self._deaf = self._ended = True
        self._wait_for(None)
        self._watch_presence()
        return True

    def hold(self, unparsed: bytes) -> None:
        """Pause reading while there is unparsed input; probe for a disconnect meanwhile, since EOF is not seen."""
        super().hold(unparsed)
        if unparsed:
            self._watch_presence()
        elif self._presence is not None and not self._ended:
            self._presence.end()
            self._presence = None

    def _watch_presence(self) -> None:
        if self._presence is None:
            self._presence = Presence(self.loop, self.transport.get_extra_info("socket"), self._probe, self.reset)
            self._presence.look()

    def abandon_last(self) -> None:
        """Abandon the last request, whose body will not be completed."""
        super().abandon_last()
        self._in_body = False

    def _probe(self) -> None:
        """Send bytes without meaning to the client: a filler of the stream, or the first bytes of a status line."""
        running: Any = self.running
        if running is None or running.response_complete:
            return
        if running.response_started:
            StreamWriter.of(running.scope).fill()
        else:
            running.transport.send_ahead()

    def _look_for_the_rest(self) -> None:
        if self._in_body:
            self._look_for_the_body()
        elif self._received > MAX_HEAD_BYTES:
            self._refuse(too_large())
        elif self._received:
            self._wait_for(_Waiting.HEAD)
        elif self.cycle is not None and self.cycle.response_complete:  # its response was complete before its body
            self._wait_idle()

    def _look_for_the_body(self) -> None:
        if self.cycle.response_complete:
            self._lingering.begin()
            return
        if self._received > 2 * self._policy.body_bytes + MAX_HEAD_BYTES:  # a one-byte chunk takes six bytes
            self._refuse(Refused(413, "Failed to buffer the request body: length limit exceeded"))
        else:
            self._wait_for(_Waiting.BODY)

    def on_response_complete(self) -> None:
        """Continue with the next pipelined request, or wait for one."""
        self._policy.bodies.drop(self.running)
        if self._over:
            self.server_state.total_requests += 1
            self._watch_unsent()
            return
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_unsent()
            return
        if self.unparsed:
            self._unset_keepalive_if_required()
            self.parse()
        if self._in_body and self.cycle.response_complete:
            self._wait_for(None)
            self._lingering.begin()
        elif self._received and not self._in_body:
            self._wait_for(_Waiting.HEAD)

    def _end(self) -> None:
        """Close the connection after its last response."""
        if self.transport.is_closing():
            return
        self._over = True
        if self._ended or not (self._in_body or self._deaf or self.unparsed):
            self.transport.close()
        else:  # the client may still be sending
            self._linger()

    def _linger(self) -> None:
        self._deaf = self._over = True
        self._wait_for(None)
        self.hold(b"")
        self.flow.resume_reading()
        half_close(self.transport)
        self._lingering.begin()

    # timeouts

    def _wait_for(self, what: _Waiting | None) -> None:
        """Start the timeout for `what`, or cancel it with None. A timeout that already runs for `what` is not restarted."""
        if what is self._waiting:
            return
        self._waiting = what
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if what is not None:
            policy = self._policy
            seconds = policy.head_s if what is _Waiting.HEAD else policy.body_s
            self._timer = self.loop.call_later(seconds, self._overdue, what)

    def _wait_idle(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _overdue(self, what: _Waiting) -> None:
        if self.flow.read_paused:  # reading is paused on the server's side
            self._timer = self.loop.call_later(_LOOK_AGAIN_S, self._overdue, what)
        elif what is _Waiting.HEAD and not self._received:
            self.transport.close()
        else:
            self._refuse(Refused(408, f"The request's {what.value} took too long"))

    # rejecting

    def _refuse(self, refusal: Refused) -> None:
        """Respond, unless other responses must come first, and end the connection. Further input is discarded."""
        self._deaf = True
        self._wait_for(None)
        if self._in_body and self.cycle in self.unanswered():
            started = self.cycle.response_started
            self.abandon_last()
            if started:
                self.reset()
                return
        before = self.unanswered()
        if before:
            before[-1].keep_alive = False
            return
        self.transport.write(refusal.answer)
        self._linger()
