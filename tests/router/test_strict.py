"""--strict-tgi: what a client of TGI's may match on is TGI's own, where the default follows OpenAI."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.serving import Served
from tests.router.test_openai import TOOLS, chat, chunks, complete
from tests.router.test_tools import ROOMY
from tgi_core.scheduler.types import GenerationFailed
from tgi_core.wire.types import FinishReason

CALL = ('{"name": "f", "argu', 'ments": {"a"', ": 1}}")
Strict = tuple[Served, Any]


@pytest.fixture
def strict(serve: Serve) -> Strict:
    """A strict server whose answers end with a stop string."""
    return serve(lambda request: says("Hi", " END", reason=FinishReason.STOP_SEQUENCE), strict_tgi=True)


def test_ids_are_empty(strict: Strict) -> None:
    """Ids are empty strings."""
    for call in (chat, complete):
        assert call(strict[0]).json()["id"] == ""
        assert chunks(call(strict[0], stream=True).text)[0]["id"] == ""


def test_stop_string_stays(strict: Strict) -> None:
    """The stop string stays in the answer, whose reason is stop_sequence."""
    [choice] = chat(strict[0], stop=[" END"]).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hi END", "stop_sequence")
    [choice] = complete(strict[0], stop=[" END"]).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hi END", "stop_sequence")


def test_chunks(serve: Serve) -> None:
    """Chat repeats the role; completions stream "" for no reason and eos_token for the end."""
    served, _ = serve(strict_tgi=True)
    deltas = [each["choices"][0]["delta"] for each in chunks(chat(served, stream=True).text)]
    assert [delta["role"] for delta in deltas] == ["assistant"] * 3
    reasons = [each["choices"][0]["finish_reason"] for each in chunks(complete(served, stream=True).text)]
    assert reasons == ["", "", "eos_token"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"presence_penalty": -2.0}, "`repetition_penalty` must be strictly positive"),
        ({"response_format": {"type": "json_object"}}, "grammar is not valid: missing field `value`"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "grammar is not valid: missing field `value`"),
    ],
)
def test_refusals(strict: Strict, more: dict[str, Any], text: str) -> None:
    """What TGI refuses is refused in TGI's form; in a stream it is an event under status 200 that says 422."""
    told = f"Input validation error: {text}"
    answer = chat(strict[0], **more)
    assert (answer.status_code, answer.json()) == (422, {"error": told, "error_type": "validation"})
    answer = chat(strict[0], stream=True, **more)
    assert answer.status_code == 200
    assert chunks(answer.text) == [{"error": {"message": told, "http_status_code": 422}}]


def test_penalties_and_choices(strict: Strict) -> None:
    """presence_penalty + 2 is the repetition penalty; `n` and a list of biases are taken and do nothing."""
    answer = chat(strict[0], presence_penalty=-0.5, n=3, logit_bias=[1.0])
    assert len(answer.json()["choices"]) == 1
    sampling = strict[1].submitted.get_nowait().sampling
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.logit_bias) == (1.5, 0.0, ())


def test_body_errors_are_plain_text(strict: Strict) -> None:
    """A body that cannot be read is told in plain text under /v1 too."""
    answer = complete(strict[0], prompt=5)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "text/plain; charset=utf-8")


def test_failures(serve: Serve) -> None:
    """A lost shard is 424."""
    served, _ = serve(lambda request: [GenerationFailed("gone")], strict_tgi=True)
    answer = chat(served)
    assert (answer.status_code, answer.json()["error_type"]) == (424, "generation")
    assert "x-should-retry" not in answer.headers


def test_choices_come_as_they_end(serve: Serve) -> None:
    """Texts of a batch are listed in the order in which they end."""
    scripts = iter([says("a", "b", "c"), says("a")])
    served, _ = serve(lambda request: next(scripts), strict_tgi=True)
    assert {each["index"] for each in complete(served, prompt=["x", "y"]).json()["choices"]} == {0, 1}


def test_tool_calls(serve: Serve) -> None:
    """A tool call has the id "0" and a null description, no content, and no reason of its own; its stream ends without one."""
    served, _ = serve(lambda request: says(*CALL), strict_tgi=True, scripted=ROOMY)
    [choice] = chat(served, tools=TOOLS).json()["choices"]
    function = {"description": None, "name": "f", "arguments": '{"a": 1}'}
    assert choice["message"] == {"role": "assistant", "tool_calls": [{"id": "0", "type": "function", "function": function}]}
    assert choice["finish_reason"] == "stop"
    streamed = [each["choices"][0] for each in chunks(chat(served, tools=TOOLS, stream=True).text)]
    assert [each["finish_reason"] for each in streamed] == [None] * len(streamed)
    calls = [each["delta"]["tool_calls"][0] for each in streamed]
    assert calls[0]["function"]["name"] == "f" and {call["id"] for call in calls} == {"0"}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'


def test_demanded_calls_are_constrained(serve: Serve) -> None:
    """Our own grammar for calls has no `properties` at its top, which TGI asks of its clients' grammars."""
    served, generator = serve(lambda request: says(*CALL), strict_tgi=True, scripted=ROOMY)
    assert chat(served, tools=TOOLS * 2, tool_choice="required").status_code == 200
    assert generator.submitted.get_nowait().grammar is not None


def test_incomplete_tool_call_is_an_error(serve: Serve) -> None:
    """Arguments that are cut off are a tool_error."""
    served, _ = serve(lambda request: says(*CALL[:2], reason=FinishReason.LENGTH), strict_tgi=True, scripted=ROOMY)
    answer = chat(served, tools=TOOLS)
    assert (answer.status_code, answer.json()["error_type"]) == (422, "tool_error")
    assert answer.json()["error"].startswith("Tool error: Failed to parse generated text: ")


def test_completions_know_nothing_of_openai(strict: Strict) -> None:
    """echo, logprobs and best_of are fields that TGI does not know."""
    plain = complete(strict[0]).json()["choices"]
    assert complete(strict[0], echo=True, logprobs=2, best_of=7).json()["choices"] == plain


def test_fields_that_tgi_does_not_know_are_passed_over(strict: Strict) -> None:
    """min_p does nothing, on any route, whatever it is."""
    assert complete(strict[0], min_p=7).status_code == 200
    assert strict[0].client.post("/generate", json={"inputs": "Hi", "parameters": {"min_p": 7}}).status_code == 200
    completed, generated = (strict[1].submitted.get_nowait().sampling for _ in range(2))
    assert (completed.min_p, generated.min_p, generated.do_sample) == (0.0, 0.0, False)
