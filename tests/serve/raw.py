"""Bare connections to a server in a process of its own."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit


def connect(url: str) -> socket.socket:
    """A connection to where a server listens."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30)


def post(url: str, path: str, body: str) -> socket.socket:
    """A connection on which a JSON request has been sent."""
    data = body.encode()
    connection = connect(url)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def read_until(connection: socket.socket, ending: bytes) -> bytes:
    """Everything up to `ending`, and what came with it."""
    data = b""
    while ending not in data:
        piece = connection.recv(1 << 16)
        assert piece, f"closed after {data[-200:]!r}"
        data += piece
    return data


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    while piece := connection.recv(1 << 16):
        data += piece
    return data
