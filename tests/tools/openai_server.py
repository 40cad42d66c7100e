"""A server of OpenAI's API that streams what a test tells it to, and notes what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass
class OpenAiServer:
    """`answer` makes the events of a stream from a request's body; a number is the status of an answer that is an error."""

    url: str
    answer: Callable[[Body], Iterator[Body | str] | int]
    bodies: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """Set when a client has gone before its answer ended."""
    running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def completion(texts: list[str], prompt_tokens: int = 7) -> Iterator[Body]:
    """A stream of completions, as vLLM sends it: the last text is empty, and the usage is an event of its own."""
    for text in texts:
        yield {"choices": [{"text": text}]}
    yield {"choices": [{"text": "", "finish_reason": "length"}]}
    yield {"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": len(texts)}}


def chat(texts: list[str]) -> Iterator[Body]:
    """A stream of a chat: the first event has a role and no text."""
    yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    for text in texts:
        yield {"choices": [{"delta": {"content": text}}]}
    yield {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(texts)}}


@contextmanager
def openai_server(answer: Callable[[Body], Iterator[Body | str] | int]) -> Generator[OpenAiServer, None, None]:
    """The server, as long as the block runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        server.told = OpenAiServer(f"http://127.0.0.1:{server.server_port}", answer)  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.told  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        listed = self.path == "/v1/models"
        self._answer(200 if listed else 404, {"data": [{"id": "a-model"}]} if listed else {})

    def do_POST(self) -> None:
        told: OpenAiServer = self.server.told  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with told.lock:
            told.bodies.append(body)
            told.headers.append(dict(self.headers))
            told.running += 1
            told.most_running = max(told.most_running, told.running)
        try:
            events = told.answer(body)
            if isinstance(events, int):
                self._answer(events, {"error": {"message": "try again later"}})
            else:
                self._stream(events, told)
        finally:
            with told.lock:
                told.running -= 1

    def _answer(self, status: int, body: Body) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[Body | str], told: OpenAiServer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for event in events:
                text = event if isinstance(event, str) else json.dumps(event)
                self.wfile.write(f"data: {text}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            told.left.set()
        finally:
            with suppress(AttributeError):
                events.close()  # type: ignore[attr-defined]
