"""Streamed chats with a server of OpenAI's API."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tgi_core.benchmark.target import Target, connect, listed_models, parse_url

_ROUTE = "/v1/chat/completions"


class ChatError(Exception):
    """The server refused a chat, or its answer ended early; says why."""


@dataclass(slots=True)
class AnswerTimes:
    """Seconds to the first text of an answer and to its end, and its tokens; None as far as unknown."""

    first_s: float | None = None
    seconds: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer's text; `thought` is the model's reasoning before its answer."""

    text: str
    thought: bool = False


class ChatClient:
    """A server, and the model to ask for."""

    def __init__(self, target: Target, prefix: str, model: str) -> None:
        self.model = model
        self._target, self._prefix = target, prefix

    @classmethod
    def open(cls, url: str, model: str | None = None, api_key: str | None = None) -> ChatClient:
        """Connect to a server. Raises StartupError if nothing answers at the URL."""
        target, prefix = parse_url(url, api_key)
        named = listed_models(target, prefix, url)
        return cls(target, prefix, model or next(iter(named), "model"))

    def stream(
        self, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any], times: AnswerTimes
    ) -> Generator[Piece, None, None]:
        """The answer as it comes; filled in `times`. Closing the iterator stops the server's work. Raises ChatError."""
        body = {"model": self.model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}, **sampling}
        connection = connect(self._target, None)
        start = time.perf_counter()
        try:
            connection.request("POST", self._prefix + _ROUTE, json.dumps(body), self._headers())
            with closing(connection.getresponse()) as response:
                if response.status != 200:
                    raise ChatError(f"{response.status}: {_reason(response.read())}")
                yield from _pieces(response, times, start)
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(f"the connection is lost: {error or type(error).__name__}") from error
        finally:
            connection.close()
        times.seconds = time.perf_counter() - start

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", **self._target.headers}


def _pieces(response: http.client.HTTPResponse, times: AnswerTimes, start: float) -> Iterator[Piece]:
    while line := response.readline():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise ChatError(f"the server sent what is no JSON: {data[:80]!r}") from error
        if "error" in event and not event.get("choices"):
            raise ChatError(_reason(data))
        if usage := event.get("usage"):
            times.tokens = usage.get("completion_tokens")
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            for name in ("reasoning_content", "reasoning", "content"):
                if delta.get(name):
                    times.first_s = times.first_s or time.perf_counter() - start
                    yield Piece(delta[name], name != "content")
    raise ChatError("the answer is incomplete: the server closed the connection")


def _reason(body: bytes) -> str:
    """What a server says is wrong."""
    text = body.decode(errors="replace")
    try:
        found = json.loads(text)
        error = found.get("error", found)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        return text[:300]
