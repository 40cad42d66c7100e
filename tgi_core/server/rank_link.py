"""The connection between rank 0 and one other rank: messages in order, and the news when one side is gone."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from tgi_core.errors import StartupError
from tgi_core.server.rank_messages import encode

_MAX_BYTES = 1 << 30
_MEETING_S = 600.0
"""How long the ranks of a group may take to start one after the other."""


class LinkClosed(Exception):
    """The other side is gone."""


class Link:
    """JSON messages over a stream socket, each behind its length."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        if stream.family != socket.AF_UNIX:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, message: Any) -> None:
        """Send a message. Raises LinkClosed."""
        data = encode(message)
        try:
            self._stream.sendall(len(data).to_bytes(4, "little") + data)
        except OSError as error:
            raise LinkClosed(error.strerror or "closed") from error

    def receive(self, seconds: float | None = None) -> Any:
        """The next message. Raises LinkClosed, and TimeoutError where there is none in time."""
        try:
            self._stream.settimeout(seconds)
            length = int.from_bytes(self._read(4), "little")
            if length > _MAX_BYTES:
                raise LinkClosed(f"a message of {length} bytes")
            return json.loads(self._read(length))
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            raise LinkClosed(str(error)) from error
        finally:
            with suppress(OSError):
                self._stream.settimeout(None)

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._stream.recv(min(count, 1 << 20))
            if not part:
                raise LinkClosed("closed by the other side")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def end_with_it(self, seconds: float) -> None:
        """End this process, from a thread, some time after the other side is gone: what it may wait for then never comes."""
        poll = select.poll()
        poll.register(self._stream.fileno(), select.POLLRDHUP)

        def wait() -> None:
            poll.poll()
            time.sleep(seconds)
            os._exit(1)

        threading.Thread(target=wait, name="rank 0", daemon=True).start()

    def close(self) -> None:
        """Leave. Idempotent."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()


def accept(host: str, port: int, world: int, token: str) -> dict[int, Link]:
    """Wait, as rank 0, for the other ranks; by rank. Raises StartupError."""
    links: dict[int, Link] = {}
    end = time.monotonic() + _MEETING_S
    try:
        with socket.create_server((host, port), family=_family(host, port)) as server:
            while len(links) < world - 1:
                server.settimeout(max(0.0, end - time.monotonic()) or 0.001)
                link = Link(server.accept()[0])
                rank = _welcomed(link, token)
                if rank is None or not 0 < rank < world or rank in links:
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
    """Reach rank 0, which may start later. Raises StartupError."""
    end = time.monotonic() + _MEETING_S
    while True:
        try:
            link = Link(socket.create_connection((host, port), timeout=10))
            link.send([rank, _proof(token, rank, link.receive(10))])
        except (OSError, LinkClosed) as error:
            if time.monotonic() > end:
                raise StartupError(f"--master-addr {host}, --master-port {port - 1}: rank 0 does not answer: {error}") from error
            time.sleep(0.2)
        else:
            return link


def _welcomed(link: Link, token: str) -> int | None:
    """The rank of one that knows the token."""
    challenge = os.urandom(16).hex()
    try:
        link.send(challenge)
        rank, proof = link.receive(10)
        known = isinstance(rank, int) and hmac.compare_digest(str(proof), _proof(token, rank, challenge))
    except (LinkClosed, TimeoutError, TypeError, ValueError):
        return None
    return rank if known else None


def _proof(token: str, rank: int, challenge: Any) -> str:
    return hmac.new(token.encode(), f"{rank} {challenge}".encode(), hashlib.sha256).hexdigest()


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
