"""The stop string stays out of answers under /v1."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tgi_router.stop_strings import StopFilter, cut

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.test_openai import chat, chunks, complete
from tgi_core.wire.types import FinishReason

STOPS = st.lists(st.text("ab", min_size=1, max_size=3), max_size=3)


@given(st.lists(st.text("abc", max_size=4)), STOPS)
def test_pieces_add_up(pieces: list[str], stops: list[str]) -> None:
    """However a text is cut into pieces, what is shown of it is the whole without the stop string at its end."""
    filter = StopFilter(stops)
    shown = [filter.push(piece) for piece in pieces]
    text = "".join(pieces)
    assert text.startswith("".join(shown))
    assert "".join(shown) + filter.finish() == cut(text, stops)


@given(st.lists(st.text("abc", max_size=4)), STOPS)
def test_no_beginning_is_shown(pieces: list[str], stops: list[str]) -> None:
    """Nothing is shown that a stop string could still take back; nothing else is held back."""
    filter, shown = StopFilter(stops), ""
    for place, piece in enumerate(pieces):
        shown += filter.push(piece)
        text = "".join(pieces[: place + 1])
        held = text[len(shown) :]
        assert text == shown + held
        assert not held or any(stop.startswith(held) for stop in stops)
        assert not any(stop.startswith(text[-size:]) for stop in stops for size in range(len(held) + 1, len(text) + 1))


@pytest.mark.parametrize(
    ("texts", "reason", "expected"),
    [
        (["Hel", "lo", " E", "ND"], FinishReason.STOP_SEQUENCE, "Hello"),
        (["Hello", " END"], FinishReason.LENGTH, "Hello"),
        (["Hello", " E"], FinishReason.EOS_TOKEN, "Hello E"),
        (["Hello", " ENDE"], FinishReason.EOS_TOKEN, "Hello ENDE"),
        ([" END"], FinishReason.STOP_SEQUENCE, ""),
    ],
)
def test_answers(serve: Serve, texts: list[str], reason: FinishReason, expected: str) -> None:
    """Whole or streamed, chat or text, the answer ends before its stop string; half of one is text."""
    served, _ = serve(lambda request: says(*texts, reason=reason))
    stop = {"stop": [" END"]}
    assert chat(served, **stop).json()["choices"][0]["message"]["content"] == expected
    assert complete(served, **stop).json()["choices"][0]["text"] == expected
    streamed: list[Any] = [each["choices"][0] for each in chunks(chat(served, stream=True, **stop).text)]
    assert "".join(each["delta"]["content"] for each in streamed) == expected
    streamed = [each["choices"][0] for each in chunks(complete(served, stream=True, **stop).text)]
    assert "".join(each["text"] for each in streamed) == expected


def test_native_answers_keep_it(serve: Serve) -> None:
    """TGI's own routes show the stop string, as TGI does."""
    served, _ = serve(lambda request: says("Hello", " END", reason=FinishReason.STOP_SEQUENCE))
    body = {"inputs": "Hi", "parameters": {"stop": [" END"]}}
    assert served.client.post("/generate", json=body).json() == {"generated_text": "Hello END"}
