"""The rules of validation, their words and their order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.conftest import Serve
from tests.router.scripted import NOTHING
from tests.router.serving import Served

RULES: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 3}, "`best_of` must be > 0 and <= 2. Given: 3"),
    ({"best_of": 2}, "you must use sampling when `best_of` is > 1"),
    ({"temperature": 0}, "`temperature` must be strictly positive"),
    ({"temperature": -1.5}, "`temperature` must be strictly positive"),
    ({"repetition_penalty": 0.0}, "`repetition_penalty` must be strictly positive"),
    ({"frequency_penalty": 2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    ({"frequency_penalty": -2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    ({"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
    ({"top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
    ({"top_p": 0.9999999999}, "`top_p` must be > 0.0 and < 1.0"),
    ({"typical_p": 1.0}, "`typical_p` must be > 0.0 and < 1.0"),
    ({"min_p": -0.1}, "`min_p` must be >= 0.0 and <= 1.0"),
    ({"min_p": 1.1}, "`min_p` must be >= 0.0 and <= 1.0"),
    ({"top_k": 0}, "`top_k` must be strictly positive"),
    ({"top_k": -1}, "`top_k` must be strictly positive"),
    ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
    ({"stop": list("abcde")}, "`stop` supports up to 4 stop sequences. Given: 5"),
    ({"best_of": 2, "do_sample": True, "seed": 1}, "`seed` must not be set when `best_of` > 1"),
    ({"top_n_tokens": 21}, "`top_n_tokens` must be >= 0 and <= 20. Given: 21"),
    ({"truncate": 0}, "`truncate` must be strictly positive and less than 60. Given: 0"),
    ({"truncate": 61}, "`truncate` must be strictly positive and less than 60. Given: 61"),
    ({"grammar": {"type": "json", "value": 5}}, "grammar is not supported"),
    ({"grammar": {"type": "regex", "value": 5}}, "grammar is not valid: a regex must be a string"),
]


def refusal(served: Served, parameters: dict[str, Any], inputs: str = "Hi", path: str = "/generate") -> str:
    """The text of a validation error, without its prefix."""
    answer = served.client.post(path, json={"inputs": inputs, "parameters": parameters})
    assert answer.status_code == 422
    assert answer.json()["error_type"] == "validation"
    prefix, _, text = answer.json()["error"].partition(": ")
    assert prefix == "Input validation error"
    return str(text)


@pytest.mark.parametrize(("parameters", "text"), RULES)
def test_rule(hello: Served, parameters: dict[str, Any], text: str) -> None:
    """Each broken rule is told in TGI's words."""
    assert refusal(hello, parameters) == text


def test_rules_are_checked_in_order(hello: Served) -> None:
    """Of several broken rules the first in TGI's order is told."""
    broken = {"top_n_tokens": 21, "max_new_tokens": 0, "top_p": 2, "temperature": -1}
    told = [refusal(hello, dict(list(broken.items())[: 4 - place])).split("`")[1] for place in range(4)]
    assert told == ["temperature", "top_p", "max_new_tokens", "top_n_tokens"]
    assert refusal(hello, {"truncate": 0}, inputs="") == "`inputs` cannot be empty"


def test_best_of_may_be_switched_off(serve: Serve) -> None:
    """With --max-best-of 1 the words differ; 0 and 1 are always fine."""
    served, _ = serve(max_best_of=1)
    assert refusal(served, {"best_of": 2}) == "`best_of` != 1 is not allowed for this endpoint"
    for best_of in (0, 1, None):
        answer = served.client.post("/generate", json={"inputs": "Hi", "parameters": {"best_of": best_of}})
        assert answer.status_code == 200


def test_lengths(hello: Served) -> None:
    """Prompt and answer must fit together; the prompt must fit alone; a token too many is told with its numbers."""
    length = len(hello.client.post("/tokenize", json={"inputs": "Hi"}).json())
    text = f"`inputs` tokens + `max_new_tokens` must be <= 64. Given: {length} `inputs` tokens and {65 - length} `max_new_tokens`"
    assert refusal(hello, {"max_new_tokens": 65 - length}) == text
    assert "and 1024 `max_new_tokens`" in refusal(hello, {"max_new_tokens": 10_000})
    words = "x y z " * 30
    count = len(hello.client.post("/tokenize", json={"inputs": words}).json())
    assert refusal(hello, {}, inputs=words).endswith(f"Given: {count} `inputs` tokens and 0 `max_new_tokens`")


def test_prompt_must_fit_alone(serve: Serve) -> None:
    """--max-input-tokens bounds the prompt even where prompt and answer would fit."""
    served, _ = serve(max_input_tokens=2)
    count = len(served.client.post("/tokenize", json={"inputs": "one two three"}).json())
    assert (
        refusal(served, {"max_new_tokens": 1}, inputs="one two three") == f"`inputs` must have less than 2 tokens. Given: {count}"
    )
    assert served.client.post("/generate", json={"inputs": "one two three", "parameters": {"truncate": 2}}).status_code == 200


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"seed": 1}, "`seed` is not supported by this backend"),
        ({"min_p": 0.5}, "`min_p` is not supported by this backend"),
        ({"watermark": True}, "`watermark` is not supported by this backend"),
        ({"typical_p": 0.5}, "`typical_p` is not supported by this backend"),
        ({"repetition_penalty": 1.5}, "`repetition_penalty` is not supported by this backend"),
        ({"frequency_penalty": 0.5}, "`frequency_penalty` is not supported by this backend"),
        ({"top_n_tokens": 1}, "`top_n_tokens` != 0 is not allowed for this endpoint"),
        ({"decoder_input_details": True}, "`decoder_input_details` is not supported by this backend"),
        ({"best_of": 2, "do_sample": True}, "`best_of` > 1 is not supported by this backend"),
        ({"grammar": {"type": "regex", "value": "a"}}, "grammar is not supported"),
    ],
)
def test_undeclared_is_refused(serve: Serve, parameters: dict[str, Any], text: str) -> None:
    """What the client named and the backend did not declare is refused, never ignored."""
    served, generator = serve(enable_prefill_logprobs=True, scripted={"capabilities": NOTHING})
    assert refusal(served, parameters) == text
    neutral = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "min_p": 0.0, "top_n_tokens": 0}
    assert served.client.post("/generate", json={"inputs": "Hi", "parameters": neutral}).status_code == 200
    assert not generator.submitted.get_nowait().want.logprobs


def test_grammars(serve: Serve) -> None:
    """A grammar reaches the shard; a bad one is told, here and in a stream; an operator may switch them off."""
    served, generator = serve()
    good = {"type": "json", "value": {"properties": {"a": {"type": "integer"}}}}
    assert served.client.post("/generate", json={"inputs": "Hi", "parameters": {"grammar": good}}).status_code == 200
    assert generator.submitted.get_nowait().grammar is not None
    assert refusal(served, {"grammar": {"type": "regex", "value": "(a"}}).startswith("grammar is not valid: ")
    body = {"inputs": "Hi", "parameters": {"grammar": {"type": "regex", "value": "(a"}}}
    assert "Input validation error: grammar is not valid: " in served.client.post("/generate_stream", json=body).text
    served, _ = serve(disable_grammar_support=True)
    assert refusal(served, {"grammar": good}) == "grammar is not supported"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"best_of": 2}, "`best_of` != 1 is not supported when streaming tokens"),
        ({"best_of": 0}, "`best_of` != 1 is not supported when streaming tokens"),
        ({"decoder_input_details": True}, "`decoder_input_details` == true is not supported when streaming tokens"),
    ],
)
def test_stream_rules(hello: Served, parameters: dict[str, Any], text: str) -> None:
    """The two rules of streams are told as two events, as TGI does, under status 200."""
    answer = hello.client.post("/generate_stream", json={"inputs": "Hi", "parameters": parameters})
    assert answer.status_code == 200
    assert answer.text == (
        f'data: {{"error":"Input validation error: {text}","error_type":"validation"}}\n\n'
        'data: {"error":"Incomplete generation stream","error_type":"incomplete_generation_stream"}\n\n'
    )


def test_other_rules_in_streams(hello: Served) -> None:
    """Any other rule is told as one event."""
    answer = hello.client.post("/generate_stream", json={"inputs": ""})
    assert answer.text == 'data: {"error":"Input validation error: `inputs` cannot be empty","error_type":"validation"}\n\n'
