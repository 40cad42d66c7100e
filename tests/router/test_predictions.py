"""OpenAI's `prediction`: the answer is the same in fewer steps, and the usage tells how much of the prediction was used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tgi_router import ServedModel, create_app
from tgi_router.request_fields import WARNING

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.serving import Served, serving
from tests.router.shard import Shard
from tests.router.test_openai import chat
from tgi_core.backend import WarmupPlan
from tgi_core.config import Settings

MESSAGES = [{"role": "user", "content": "What is 7 plus 5?"}]


@pytest.fixture(scope="module")
def served(model: ServedModel) -> Iterator[Served]:
    """The demo model, with drafts. No step takes time, so that none is dear on a busy machine."""
    plan = WarmupPlan(max_rows=4, max_row_tokens=256, draft=6)
    shard = Shard(model.tokenizer, plan, on_cpu="float32", clock=lambda: 0.0)
    with serving(lambda generator: create_app(Settings(), model, generator), shard.opening) as running:
        yield running


def ask(served: Served, prediction: Any = None, **more: Any) -> Any:
    """A chat completion, with its usage if it is streamed."""
    more = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0, **more}
    response = chat(served, **more, **({} if prediction is None else {"prediction": prediction}))
    assert response.status_code == 200 and WARNING not in response.headers, response.text
    return response


def content(text: Any) -> dict[str, Any]:
    """A prediction."""
    return {"type": "content", "content": text}


def use(usage: Any) -> tuple[int, int]:
    """Accepted and rejected tokens of the prediction."""
    details = usage["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


def test_the_answer_is_the_same(served: Served) -> None:
    """With a good prediction, in one piece or in parts, a bad one, an empty one and none; only a good one is accepted."""
    plain = ask(served).json()
    text = plain["choices"][0]["message"]["content"]
    assert "completion_tokens_details" not in plain["usage"]
    parts = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    found = {}
    for name, given in {"good": text, "parts": parts, "bad": "zebra " * 50, "long": text + "x" * 5000}.items():
        answer = ask(served, content(given)).json()
        assert answer["choices"] == plain["choices"]
        assert answer["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
        found[name] = use(answer["usage"])
    assert (
        all(found[name][0] > 0 for name in ("good", "parts", "long")) and sum(found["good"]) < plain["usage"]["completion_tokens"]
    )
    assert found["bad"][0] == 0
    assert ask(served, content("")).json()["choices"] == plain["choices"]


def test_a_stream_has_that_usage(served: Served) -> None:
    """In its last chunk, if the client asks for it."""
    text = ask(served).json()["choices"][0]["message"]["content"]
    lines = ask(served, content(text), stream=True, stream_options={"include_usage": True}).text.splitlines()
    last = json.loads([line for line in lines if line.startswith("data: {")][-1].removeprefix("data: "))
    assert use(last["usage"])[0] > 0


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("x", "prediction"),
        ({"type": "content"}, "prediction: missing field `content`"),
        ({"type": "guess", "content": "x"}, "prediction.type"),
        ({"type": "content", "content": 7}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image_url", "text": "x"}]}, "prediction.content.0.type"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content.0: missing field `text`"),
    ],
)
def test_what_is_none_is_refused(served: Served, given: Any, named: str) -> None:
    """With the name of the field that is wrong."""
    response = chat(served, messages=MESSAGES, prediction=given)
    assert response.status_code == 422 and named in response.json()["error"]["message"], response.text


@pytest.mark.parametrize("stream", [False, True])
def test_without_speculation_it_is_ignored(serve: Serve, stream: bool) -> None:
    """With a warning, and without any use to report."""
    running, generator = serve(lambda request: says("aa"))
    generator.is_speculating = False
    response = chat(running, prediction=content("aa"), stream=stream)
    assert response.status_code == 200 and response.headers[WARNING] == "ignored fields: prediction"
    assert "completion_tokens_details" not in response.text
    assert generator.submitted.get().prediction == ()
