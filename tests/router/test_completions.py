"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.serving import Served
from tests.router.test_openai import chat, chunks, complete, tokens
from tgi_core.wire.types import FinishReason


def test_completion_stream_usage_on_demand(hello: Served) -> None:
    """include_usage adds a last chunk without a choice, summed over the texts."""
    *_, last = chunks(complete(hello, prompt=["a", "b"], stream=True, stream_options={"include_usage": True}).text)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 6


def test_token_ids_as_prompts(serve: Serve) -> None:
    """A prompt may be token ids, alone or in a list; `echo` shows their text; ids that the model has not are refused."""
    served, generator = serve()
    for prompt, lengths in (([20, 30], [2]), ([[20, 30], [40]], [2, 1]), (["x", [40, 50, 60]], None)):
        assert complete(served, prompt=prompt).status_code == 200
        asked = [generator.submitted.get_nowait().input_ids for _ in range(len(lengths or prompt))]
        assert lengths is None or [len(ids) for ids in asked] == lengths
        assert asked[-1] == tuple(prompt[-1] if isinstance(prompt[-1], list) else prompt)
    [choice] = complete(served, prompt=[20, 30], echo=True).json()["choices"]
    assert choice["text"].endswith("Hello world") and len(choice["text"]) > len("Hello world")
    for prompt in ([2**31], [[]], [True], [1.5], [[20], [2**32]], [20] * 5000):
        assert complete(served, prompt=prompt).status_code == 422, prompt


def test_no_tokens_at_all(serve: Serve) -> None:
    """`max_tokens: 0` returns the prompt alone, if it is to be echoed; a stream of nothing is refused, and so is a chat."""
    served, _ = serve()
    answer = complete(served, prompt=["a", "b"], max_tokens=0, echo=True, logprobs=None).json()
    assert [(each["text"], each["finish_reason"]) for each in answer["choices"]] == [("a", "length"), ("b", "length")]
    assert answer["usage"]["completion_tokens"] == 0
    assert complete(served, prompt="a", max_tokens=0, stream=True).status_code == 422
    assert chat(served, max_tokens=0).status_code == 422


def test_too_long_has_a_code_of_its_own(hello: Served) -> None:
    """Agents shorten their prompt when they read context_length_exceeded."""
    for more in ({"prompt": "x y z " * 60}, {"max_tokens": 1000}):
        error = complete(hello, **more).json()
        assert (error["error"]["code"], error["error_type"]) == ("context_length_exceeded", "validation")


def test_completion_answer(hello: Served) -> None:
    """A completion names the served model whatever the client asked for; it has no x-compute-time."""
    answer = complete(hello, model="other")
    body = answer.json()
    assert list(body) == ["object", "id", "created", "model", "system_fingerprint", "choices", "usage"]
    assert (body["object"], body["model"], body["id"][:5]) == ("text_completion", "demo", "cmpl-")
    assert body["choices"] == [{"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop"}]
    assert "x-compute-time" not in answer.headers and answer.headers["x-generated-tokens"] == "3"


def test_completion_batch(serve: Serve) -> None:
    """Several prompts are answered in their order, with usage and headers summed over them."""
    texts = iter("abc")
    served, generator = serve(lambda request: says(next(texts), reason=FinishReason.LENGTH))
    answer = complete(served, prompt=["one", "two", "three"])
    choices = answer.json()["choices"]
    assert [(each["index"], each["text"], each["finish_reason"]) for each in choices] == [
        (0, "a", "length"), (1, "b", "length"), (2, "c", "length"),
    ]  # fmt: skip
    lengths = [len(generator.submitted.get_nowait().input_ids) for _ in range(3)]
    assert answer.json()["usage"] == tokens(sum(lengths), 3)
    assert (answer.headers["x-compute-characters"], answer.headers["x-prompt-tokens"]) == ("11", str(sum(lengths)))


def test_completion_stream(hello: Served) -> None:
    """Prompts share one stream; special tokens add no text; the last chunk of each prompt tells its usage."""
    events = chunks(complete(hello, prompt=["one", "two"], stream=True).text)
    for index in (0, 1):
        mine = [each for each in events if each["choices"][0]["index"] == index]
        assert [each["choices"][0]["text"] for each in mine] == ["Hello", " world", ""]
        assert [each["choices"][0]["finish_reason"] for each in mine] == [None, None, "stop"]
        assert [list(each)[-1] for each in mine] == ["system_fingerprint", "system_fingerprint", "usage"]
        assert mine[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("more", "error_type", "text"),
    [
        (
            {"prompt": ["x"] * 5},
            "batch size exceeded",
            "Number of prompts exceeds the maximum allowed batch size of 4; the server's --max-client-batch-size sets it",
        ),
        ({"suffix": ""}, "suffix not supported", "Suffix is not supported and can be achieved by preprocessing the prompt."),
        ({"prompt": ""}, "validation", "Input validation error: `prompt` cannot be empty"),
    ],
)
def test_completion_refusals(hello: Served, more: dict[str, Any], error_type: str, text: str) -> None:
    """Too many prompts, a suffix and an empty prompt are told as error objects, streamed or not."""
    answer = complete(hello, **more)
    assert (answer.status_code, answer.json()["error_type"]) == (422, error_type)
    assert answer.json()["error"]["message"] == text


def test_completion_refuses_empty_list(hello: Served) -> None:
    """An empty list of prompts is a type error, in plain text."""
    answer = complete(hello, prompt=[])
    assert answer.status_code == 422
    assert "Empty array detected. Do not use an empty array for the prompt." in answer.text
