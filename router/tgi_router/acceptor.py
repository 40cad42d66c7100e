"""Accepts connections, and rejects complete requests of an overloaded server before a connection is set up.

Setting up an asyncio connection costs as much as the rest of a rejection, and a server that is busy accepting leaves new clients
waiting in the kernel's backlog. So while there is no capacity, the acceptor peeks at the bytes that have already arrived: a
complete request that would be rejected gets its response at once, and its socket is closed. All other sockets become connections
as usual.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from tgi_router.connection_policy import ConnectionPolicy
from tgi_router.rejection import Refused, check_head

_log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 16
"""Requests of this size or more are not parsed here."""
_AT_ONCE, _MOST_WAITING = 32, 1024
"""Maximum number of sockets accepted per event loop iteration, and of accepted sockets that wait for their turn."""
_RETRY_S = 0.5
"""Seconds without accepting after the system has run out of a resource, such as file descriptors."""

Peer = tuple[str, int]
Headers = list[tuple[bytes, bytes]]


class _Whole:
    """Parser callbacks that collect one request and record whether it is complete."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: Headers = []
        self.messages = self.complete = 0

    def on_message_begin(self) -> None:
        self.messages += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_message_complete(self) -> None:
        self.complete += 1


class Acceptor:
    """Accepts connections from a listening socket until closed; `protocol` creates the protocol of a connection. Replaces
    `asyncio.Server`, which accepts the whole backlog before it serves any connection. Bound to one event loop."""

    def __init__(
        self, listener: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], policy: ConnectionPolicy, defaults: Headers
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._protocol = protocol
        self._policy = policy
        self._defaults = defaults
        """Headers of all responses."""
        self._connecting: set[asyncio.Task[object]] = set()
        self._waiting = 0
        highest = policy.max_descriptor
        self._most_waiting = _MOST_WAITING if highest is None else max(1, min(_MOST_WAITING, highest // 4))
        listener.setblocking(False)
        self._start()

    def close(self) -> None:
        """Stop accepting and close the listening socket."""
        self._stop()
        self._listener.close()

    def _start(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _stop(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        """Accept pending connections. The kernel's backlog is one queue; here each address has a queue of its own."""
        for _ in range(_AT_ONCE):
            try:
                own, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors or memory: the socket would stay readable, and the loop would spin
                _log.warning("a connection cannot be accepted: %s; next try in %.1f s", error.strerror, _RETRY_S)
                self._stop()
                self._loop.call_later(_RETRY_S, self._start)
                return
            own.setblocking(False)
            if self._too_many(own):
                _answer(own, Refused(503, "Too many connections").answer)
            elif self._policy.rounds.full():
                self._line_up(own, peer[:2])
            else:
                self._look(own, peer[:2])
            if self._waiting >= self._most_waiting:
                self._stop()
                return

    def _too_many(self, own: socket.socket) -> bool:
        highest = self._policy.max_descriptor
        return highest is not None and own.fileno() > highest

    def _line_up(self, own: socket.socket, peer: Peer) -> None:
        self._waiting += 1
        self._policy.rounds.later(peer[0], partial(self._turn, own, peer))

    def _turn(self, own: socket.socket, peer: Peer) -> None:
        if self._waiting >= self._most_waiting:
            self._start()
        self._waiting -= 1
        self._look(own, peer)

    def _look(self, own: socket.socket, peer: Peer) -> None:
        """Reject the request that has arrived, or set up its connection."""
        answer = self._refusal(own, peer)
        if answer is not None:
            _answer(own, answer)
            return
        self._policy.rounds.request_begun()
        task: asyncio.Task[object] = self._loop.create_task(self._loop.connect_accepted_socket(self._protocol, own))
        self._connecting.add(task)
        task.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[object]) -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a connection cannot be served: %s", error)

    def _refusal(self, own: socket.socket, peer: Peer) -> bytes | None:
        """Return the rejection of a request that has fully arrived; None, with its bytes left in the socket, to serve it."""
        admission = self._policy.admission
        if admission is None or not admission.full or self._policy.closing:
            return None
        try:
            data = own.recv(_MOST_BYTES, socket.MSG_PEEK)
        except OSError:
            return None
        found = _parsed(data) if len(data) < _MOST_BYTES else None
        if found is None:
            return None
        answer = admission.refuse(found.url, peer, found.headers, [*self._defaults, (b"connection", b"close")])
        if answer is not None:
            own.recv(_MOST_BYTES)  # closing with unread bytes would reset the connection
        return answer


def _answer(own: socket.socket, answer: bytes) -> None:
    """Send the only response of a connection, and close it."""
    with suppress(OSError):  # the client may be gone; otherwise an empty send buffer takes so few bytes
        own.send(answer)
    own.close()


def _parsed(data: bytes) -> _Whole | None:
    """Parse exactly one complete HTTP/1.1 POST request; None for anything else."""
    found = _Whole()
    parser = HttpRequestParser(found)
    try:
        parser.feed_data(data)
        if found.complete != 1 or found.messages != 1 or parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
            return None
        check_head(found.url, found.headers, "1.1")
    except (HttpParserError, HttpParserUpgrade, Refused):
        return None
    return found
