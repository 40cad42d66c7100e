"""Accepts connections, and refuses at the door what comes whole and finds no room.

A connection of asyncio's costs as much as all else that a refusal takes, and a server that can do no more than accept lets newcomers
wait in the kernel. So while there is no room, the bytes that are there already are looked at before there is such a connection: a
request that is complete and would be refused is answered, and its connection closed. All else becomes a connection as ever.
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
"""A longer request is not looked at here."""
_AT_ONCE, _MOST_WAITING = 32, 1024
"""So many are taken in in one round of the event loop, and so many wait at most for their turn to be looked at."""
_RETRY_S = 0.5
"""After which connections are accepted again when the system had no room for one."""

Peer = tuple[str, int]
Headers = list[tuple[bytes, bytes]]


class _Whole:
    """What a parser finds: one request, and whether it is complete."""

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
    """Accepts from a listening socket until closed; `protocol` makes the protocol of a connection. Stands in for an
    `asyncio.Server`, which accepts all that is there before it looks at any. Belongs to one event loop."""

    def __init__(
        self, listener: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], policy: ConnectionPolicy, defaults: Headers
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._protocol = protocol
        self._policy = policy
        self._defaults = defaults
        """The headers that all answers have."""
        self._connecting: set[asyncio.Task[object]] = set()
        self._waiting = 0
        highest = policy.max_descriptor
        self._most_waiting = _MOST_WAITING if highest is None else max(1, min(_MOST_WAITING, highest // 4))
        listener.setblocking(False)
        self._start()

    def close(self) -> None:
        """Accept no more, and close the socket."""
        self._stop()
        self._listener.close()

    def _start(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _stop(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        """Take in who has come. The kernel keeps them in one line; here each address has its own."""
        for _ in range(_AT_ONCE):
            try:
                own, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, no memory: the kernel would tell of the connection for ever
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
        """Refuse what has come, or let it in."""
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
        """The answer to a request that has come whole and finds no room. What has come is left there if there is none."""
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
            own.recv(_MOST_BYTES)  # closed with bytes that nobody has read, the kernel would reset it
        return answer


def _answer(own: socket.socket, answer: bytes) -> None:
    """The first and last that a client hears."""
    with suppress(OSError):  # it may have left; else a socket that has sent nothing takes so few bytes
        own.send(answer)
    own.close()


def _parsed(data: bytes) -> _Whole | None:
    """A request by POST, if that is what the bytes are, and no more than that."""
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
