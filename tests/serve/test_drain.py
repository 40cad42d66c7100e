"""SIGTERM: what runs is finished or told that it is not, and the exit status is 0."""

from __future__ import annotations

import signal
import socket
import time
from contextlib import ExitStack

import httpx
import pytest

from tests.serve.process import ServerProcess, served
from tests.serve.raw import connect, post, read_all, read_until

LONG = 1500
"""Tokens of an answer that takes far longer than the grace period where steps are slow."""

NATIVE = ("/generate_stream", '{"inputs":"once","parameters":{"max_new_tokens":%d}}')
CHAT = ("/v1/chat/completions", '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":%d,"stream":true}')
COMPLETION = ("/v1/completions", '{"prompt":"once","max_tokens":%d,"stream":true}')


def start_streams(server: ServerProcess, stack: ExitStack, count: int, tokens: int) -> list[tuple[str, socket.socket, bytes]]:
    """Streams of all dialects that have begun: path, connection, and what was read."""
    begun = []
    for number in range(count):
        path, body = (NATIVE, CHAT, COMPLETION)[number % 3]
        begun.append((path, stack.enter_context(post(server.url, path, body % tokens))))
    return [(path, connection, read_until(connection, b"data: ")) for path, connection in begun]


def ended_well(path: str, text: bytes) -> bool:
    """Whether a stream came to its own end."""
    assert text.endswith(b"\r\n0\r\n\r\n"), text[-200:]
    if path == "/generate_stream":
        return b'"generated_text":"' in text
    assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    return b'"finish_reason":"' in text


def was_told(path: str, text: bytes) -> bool:
    """Whether a stream's last event says, in its dialect, that the server is shutting down."""
    events = [line for line in text.split(b"\n") if line.startswith(b"data: {")]
    native = b'{"error":"The server is shutting down","error_type":"shutting_down"}'
    return native in events[-1] if path == "/generate_stream" else b'"code":"shutting_down"' in events[-1]


def test_within_the_grace_period() -> None:
    """64 streams that run at SIGTERM all come to their own end; readiness goes at once; the exit status is 0."""
    with served("--backend", "reference", "--drain-delay", "0.5") as server, ExitStack() as stack:
        streams = start_streams(server, stack, 64, 40)
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=30))
        assert client.get("/readyz").status_code == 200
        sent = time.monotonic()
        server.child.send_signal(signal.SIGTERM)
        while (answer := client.get("/readyz")).status_code == 200:
            pass
        print(f"readiness false after {1000 * (time.monotonic() - sent):.0f} ms")
        assert answer.json()["phase"] == "draining" and answer.headers["connection"] == "close"
        assert client.post("/generate", json={"inputs": "Hi", "parameters": {"max_new_tokens": 2}}).status_code == 200
        assert all(ended_well(path, begun + read_all(connection)) for path, connection, begun in streams)
        assert server.child.wait(30) == 0
        with pytest.raises(ConnectionRefusedError):
            connect(server.url)


def test_beyond_the_grace_period() -> None:
    """Streams that cannot end in time are told so in their dialect, other requests get 503, and the exit status is 0 in time."""
    slow = ("--inject-faults", "slow:every=1,ms=50")  # 40 of their tokens fit into the grace period
    arguments = ("--backend", "reference", "--graceful-termination-timeout", "2", *slow)
    with served(*arguments) as server, ExitStack() as stack:
        streams = start_streams(server, stack, 63, LONG)
        whole = stack.enter_context(post(server.url, "/v1/completions", COMPLETION[1].replace("true", "false") % LONG))
        idle = stack.enter_context(connect(server.url))
        sent = time.monotonic()
        server.child.send_signal(signal.SIGTERM)
        texts = [(path, begun + read_all(connection)) for path, connection, begun in streams]
        assert all(was_told(path, text) or ended_well(path, text) for path, text in texts)
        assert sum(was_told(path, text) for path, text in texts) > 32
        answer = read_all(whole)
        assert answer.startswith(b"HTTP/1.1 503") and b"x-should-retry: true" in answer
        assert idle.recv(1) == b""
        assert server.child.wait(30) == 0
        print(f"ended {time.monotonic() - sent:.2f} s after SIGTERM, grace 2 s")


def test_a_second_signal() -> None:
    """Whoever asks twice does not have to wait."""
    with served("--backend", "reference") as server, ExitStack() as stack:
        endless = '{"inputs":"once","parameters":{"max_new_tokens":2000,"grammar":{"type":"regex","value":"[ab]{2000}"}}}'
        for _ in range(8):
            read_until(stack.enter_context(post(server.url, "/generate_stream", endless)), b"data: ")
        server.child.send_signal(signal.SIGTERM)
        with httpx.Client() as client:
            while _refused(client, server.url):
                pass
        server.child.send_signal(signal.SIGINT)
        assert server.child.wait(10) == 0


def _refused(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_reader_that_does_not_read_does_not_keep_it() -> None:
    """A client that has stopped reading cannot hold the server beyond the grace period."""
    with served("--backend", "reference", "--graceful-termination-timeout", "1") as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        connection.connect(("127.0.0.1", httpx.URL(server.url).port))
        body = '{"inputs":"once","parameters":{"max_new_tokens":2000,"top_n_tokens":5}}'
        head = (
            f"POST /generate_stream HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        connection.sendall((head + body).encode())
        assert connection.recv(10)
        server.child.send_signal(signal.SIGTERM)
        assert server.child.wait(10) == 0
