"""Frames of event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tgi_router import sse
from tgi_router.json_text import quote
from tgi_router.sse import EventStream, event

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.test_openai import chat, chunks, complete

ODD = st.text(st.characters(codec="utf-8") | st.sampled_from('\r\n\0\x0b\x0c\x1c\x85\u2028\u2029:"\\'), max_size=40)


@given(ODD)
def test_frames_survive_any_text(text: str) -> None:
    """Whatever a text holds, its event is one line, and reads as that text again."""
    frame = event(f'{{"text":{quote(text)}}}')
    head, body, end = frame[:6], frame[6:-2], frame[-2:]
    assert (head, end) == (b"data: ", b"\n\n")
    assert b"\n" not in body and b"\r" not in body
    assert json.loads(body) == {"text": text}


def test_streams_survive_odd_texts(serve: Serve) -> None:
    """Line breaks, null bytes and what looks like a frame of its own arrive as they were generated."""
    odd = ["\r\n\r\ndata: [DONE]\n\n", "\0", "\u2028event: x", '"}', "data: {}\n\n", "\\u000a"]
    served, _ = serve(lambda request: says(*odd))
    assert [each["choices"][0]["delta"]["content"] for each in chunks(chat(served, stream=True).text)] == [*odd, ""]
    assert [each["choices"][0]["text"] for each in chunks(complete(served, stream=True).text)] == [*odd, ""]
    text = served.client.post("/generate_stream", json={"inputs": "Hi"}).text
    assert [json.loads(frame[6:])["token"]["text"] for frame in text.split("\n\n")[:-1]][:-1] == odd


class Gone:
    """An writer whose client has left: nothing is written, however often."""

    written_at = 0.0
    tried = 0

    def open(self, filler: bytes) -> None:
        """Nothing needs to be known."""

    def write(self, data: bytes) -> bool:
        """Into nothing."""
        return True

    def fill(self) -> None:
        """Count; too many tries are an error."""
        self.tried += 1
        if self.tried > 100:
            raise AssertionError("it tries and tries")


async def test_comments_to_nobody_hold_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that leaves at the very moment of a comment, while its stream takes a moment to end, does not keep the loop busy."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.001)
    filled, writer = asyncio.Event(), Gone()

    async def events() -> AsyncGenerator[bytes, None]:
        while writer.tried < 3:
            await asyncio.sleep(0)
        filled.set()
        yield b""

    async def receive() -> Any:
        await filled.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody listens."""

    await EventStream(events(), writer, {})({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert 3 <= writer.tried < 100
