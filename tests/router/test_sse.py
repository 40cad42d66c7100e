"""Frames of event streams."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from tgi_router.json_text import quote
from tgi_router.sse import event

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
