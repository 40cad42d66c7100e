"""A server that runs out of file descriptors refuses new connections, and is as before when there are some again."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import httpx

from tests.serve.process import TGI, served
from tests.serve.raw import connect, post, read_until

LIMIT = 64


def test_few_descriptors() -> None:
    """With 64 descriptors and twice as many clients some are served and the others get 503; later all are served again."""
    with served("--backend", "reference", tgi=("prlimit", f"--nofile={LIMIT}:{LIMIT}", *TGI)) as server:
        for _ in range(2):
            with ExitStack() as stack:
                begun = stack.enter_context(
                    post(server.url, "/generate_stream", '{"inputs":"a","parameters":{"max_new_tokens":99}}')
                )
                crowd = [stack.enter_context(connect(server.url)) for _ in range(2 * LIMIT)]
                answers = [_ask(connection) for connection in crowd]
                assert answers.count(b"200") > 10 and answers.count(b"503") > 10
                assert set(answers) == {b"200", b"503"}
                assert b'"generated_text":"' in read_until(begun, b'"generated_text":"')
            while _status(server.url) != 200:
                pass
            body = {"inputs": "Hi", "parameters": {"max_new_tokens": 2}}
            assert httpx.post(f"{server.url}/generate", json=body, timeout=30).status_code == 200
        assert not [line for line in server.lines if "Traceback" in line]


def _ask(connection: socket.socket) -> bytes:
    connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    return read_until(connection, b"\r\n\r\n").split(b" ")[1]


def _status(url: str) -> int:
    return httpx.get(f"{url}/health", timeout=30).status_code
