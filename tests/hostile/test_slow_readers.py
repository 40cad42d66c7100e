"""Clients that ask and do not read: others are served meanwhile, and nothing of it is left when they go."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.hostile.server import ServerUnderTest
from tests.router.serving import read_until

CLIENTS = 24
TOKENS = 400

Manner = Callable[[socket.socket, bytes], None]
"""What a client does with its connection once it has asked; it may ask again."""


def ends_its_side(connection: socket.socket, request: bytes) -> None:
    """Says that it has no more to say, and does not read."""
    connection.shutdown(socket.SHUT_WR)


def asks_on(connection: socket.socket, request: bytes) -> None:
    """Asks again and again on the same connection."""
    for _ in range(8):
        connection.sendall(request)


def reads_a_little(connection: socket.socket, request: bytes) -> None:
    """Reads the head of the answer."""
    read_until(connection, b"\r\n\r\n")


def reads_nothing(connection: socket.socket, request: bytes) -> None:
    """Just that."""


@pytest.mark.parametrize("leaves", [False, True], ids=["closes", "resets"])
@pytest.mark.parametrize("manner", [reads_nothing, reads_a_little, ends_its_side, asks_on], ids=lambda manner: manner.__name__)
@pytest.mark.parametrize("path", ["/generate_stream", "/generate"])
def test_a_crowd_that_does_not_read(instance: ServerUnderTest, path: str, manner: Manner, leaves: bool) -> None:
    """With tiny windows, for as many tokens as there may be; a plain request is answered while they are there."""
    if path == "/generate" and manner is reads_a_little:
        pytest.skip("the answer in one piece comes when it is complete")
    body = json.dumps({"inputs": "Hi", "parameters": {"max_new_tokens": TOKENS, "ignore_eos_token": True}}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            own = stack.enter_context(socket.socket())
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            if leaves:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            own.connect(instance.served.address)
            own.sendall(request)
            manner(own, request)
        plain = instance.post("/generate", {"inputs": "Hi", "parameters": {"max_new_tokens": 2}})
        assert plain.status_code == 200
