"""Audit hooks of the interpreter: which addresses this process turns to, and which files it opens.

A hook cannot be taken off, so there is one for the whole run; it listens only within `watching`.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Watch:
    """What happened while somebody watched, in any thread."""

    def __init__(self) -> None:
        self.connections: list[str] = []
        self.files: list[str] = []
        self._allowed: tuple[Any, ...] = ()
        self._on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            family = getattr(arguments[0], "family", None)
            if family != socket.AF_UNIX and arguments[1] not in (None, self._allowed):
                self.connections.append(f"{event} {arguments[1]}")
        elif event in ("socket.getaddrinfo", "socket.gethostbyname") and arguments[0] not in ("127.0.0.1", b"127.0.0.1"):
            self.connections.append(f"{event} {arguments[0]!r}")
        elif event == "open" and isinstance(arguments[0], str | bytes):
            self.files.append(arguments[0] if isinstance(arguments[0], str) else arguments[0].decode(errors="replace"))

    @contextmanager
    def watching(self, allowed: tuple[str, int]) -> Iterator[Watch]:
        """Listen while the block runs; `allowed` is the address of the server, to which the test itself turns."""
        self.connections, self.files, self._allowed, self._on = [], [], allowed, True
        try:
            yield self
        finally:
            self._on = False


class Canary:
    """A listener on the loopback that nobody should find."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    def check_alone(self) -> None:
        """Nobody has come: from this process, its children, or anywhere."""
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return
        connection.close()
        raise AssertionError(f"a connection from {address}")

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
