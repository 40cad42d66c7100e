"""The connection between rank 0 and another rank: ordered messages, and detection of a lost peer."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from tgi_core.errors import StartupError
from tgi_core.framing import FrameSocket
from tgi_core.server.rank_messages import encode
from tgi_core.shard_access import HOW_TO_SHARE

_MAX_BYTES = 1 << 30
_MEETING_S = 600.0
"""Seconds that the ranks of a group may take to connect to rank 0."""
_HELLO_S = 10.0
_HELLO_BYTES = 1 << 10
"""Limits of a handshake message, in seconds and bytes, from a peer that has not authenticated yet."""

KEEP_ALIVE = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 25_000,
}
"""How a machine is noticed that is gone without a word: after 25 s without an answer."""

_log = logging.getLogger(__name__)


class LinkClosed(Exception):
    """The peer has closed the connection, or it failed."""


class Link:
    """JSON messages over a stream socket, one per frame."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._frames = FrameSocket(stream)
        if stream.family != socket.AF_UNIX:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEP_ALIVE.items():
                stream.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, message: Any) -> None:
        """Send a message. Raises LinkClosed."""
        try:
            self._frames.send(encode(message))
        except OSError as error:
            raise LinkClosed(error.strerror or "closed") from error

    def receive(self, timeout_s: float | None = None, limit: int = _MAX_BYTES) -> Any:
        """Receive the next message, of at most `limit` bytes. Raises LinkClosed; TimeoutError if it does not arrive in time."""
        try:
            return json.loads(self._frames.receive(limit, timeout_s))
        except (EOFError, OSError, ValueError, RecursionError) as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # with a number, the machine does not answer any more
                raise
            raise LinkClosed(str(error)) from error

    def end_with_it(self, seconds: float, say: Callable[[], None]) -> None:
        """From a thread, end this process `seconds` after the peer is gone, after calling `say`: the process may be waiting for the peer
        on the device, forever."""
        poll = select.poll()
        poll.register(self._stream.fileno(), select.POLLRDHUP)

        def wait() -> None:
            poll.poll()
            time.sleep(seconds)
            say()
            os._exit(1)

        threading.Thread(target=wait, name="rank 0", daemon=True).start()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()


def accept(host: str, port: int, world: int, token: str) -> dict[int, Link]:
    """As rank 0, wait for the other ranks to connect. Return their links by rank. Raises StartupError."""
    links: dict[int, Link] = {}
    end = time.monotonic() + _MEETING_S
    try:
        with socket.create_server((host, port), family=_family(host, port)) as server:
            while len(links) < world - 1:
                server.settimeout(max(0.0, end - time.monotonic()) or 0.001)
                stream, whence = server.accept()
                link = Link(stream)
                rank = _welcomed(link, token, set(range(1, world)).difference(links), whence[0])
                if rank is None:
                    link.close()
                else:
                    links[rank] = link
    except TimeoutError as error:
        missing = ", ".join(str(rank) for rank in range(1, world) if rank not in links)
        raise StartupError(f"ranks {missing} of {world} have not come to {host}:{port} in {_MEETING_S:.0f} s") from error
    except OSError as error:
        raise StartupError(
            f"--master-addr {host}, --master-port {port - 1}: cannot listen on port {port}: {error.strerror}"
        ) from error
    return links


def join(host: str, port: int, rank: int, token: str) -> Link:
    """Connect to rank 0, which may start later. Raises StartupError, also if rank 0 has a different token."""
    end = time.monotonic() + _MEETING_S
    where = f"--master-addr {host}, --master-port {port - 1}"
    while True:
        try:
            link = Link(socket.create_connection((host, port), timeout=_HELLO_S))
        except OSError as error:
            failure: Exception = error
        else:
            try:
                _introduce(link, token, rank, where)
            except (OSError, LinkClosed) as error:
                link.close()
                failure = error
            except StartupError:
                link.close()
                raise
            else:
                return link
        if time.monotonic() > end:
            raise StartupError(f"{where}: rank 0 does not answer: {failure}") from failure
        time.sleep(0.2)


def _welcomed(link: Link, token: str, missing: Collection[int], whence: str) -> int | None:
    """Authenticate a peer and return its rank; None if it does not know the token or is not a missing rank. Mutual: rank 0 also
    proves that it knows the token."""
    challenge = os.urandom(16).hex()
    try:
        link.send(challenge)
        rank, theirs, proof = link.receive(_HELLO_S, _HELLO_BYTES)
        if not hmac.compare_digest(str(proof).encode(), _proof(token, rank, challenge).encode()):
            _log.warning(
                "rejected a connection from %s that does not know the ranks' token; for a rank, %s", whence, HOW_TO_SHARE
            )
            link.send(["refused", f"it does not know rank 0's token; {HOW_TO_SHARE}"])
        elif rank not in missing:
            link.send(["refused", f"rank {rank} has come already, or WORLD_SIZE differs"])
        else:
            link.send(["welcome", _proof(token, 0, theirs)])
            return int(rank)
    except (LinkClosed, TimeoutError, TypeError, ValueError):
        pass
    return None


def _introduce(link: Link, token: str, rank: int, where: str) -> None:
    """Authenticate to rank 0 with the token, and verify that rank 0 knows it, too. Raises StartupError, LinkClosed,
    TimeoutError."""
    mine = os.urandom(16).hex()
    link.send([rank, mine, _proof(token, rank, link.receive(_HELLO_S, _HELLO_BYTES))])
    try:
        word, reply = map(str, link.receive(_HELLO_S, _HELLO_BYTES))
    except (TypeError, ValueError) as error:
        raise LinkClosed("what answers is no rank 0") from error
    if word != "welcome":
        raise StartupError(f"{where}: rank 0 turned rank {rank} away: {reply}")
    if not hmac.compare_digest(reply.encode(), _proof(token, 0, mine).encode()):
        raise StartupError(f"{where}: what listens there does not know the ranks' token; {HOW_TO_SHARE}")


def _proof(token: str, rank: int, challenge: object) -> str:
    return hmac.new(token.encode(), f"{rank} {challenge}".encode(), hashlib.sha256).hexdigest()


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
