"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter
from tgi_router import ServedModel
from tgi_router.anthropic_answers import AnthropicErrorResponse, AnthropicMessage, MessageEvents
from tgi_router.reasoning import ReasoningTags
from tgi_router.templates import ChatTemplates

from tests.router.conftest import Serve
from tests.router.scripted import HOLD, says
from tests.router.serving import Served, read_until
from tests.router.test_tools import ONE
from tgi_core.scheduler.types import Limits, RequestFailed
from tgi_core.wire.types import FinishReason

ROOMY = {"limits": Limits(2000, 2048)}
USER = {"role": "user", "content": "Hi"}
TOOLS = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
ECHO = ChatTemplates(
    {
        "default": "{{ messages[0].tool_calls and '' }}{{ messages | tojson }}|{{ enable_thinking }}|{{ reasoning_effort }}"
        "|{{ (tools or []) | length }}"
    }
)
"""A template whose prompt is what it was given, tool calls too."""
THINKING = ChatTemplates({"default": "{% for m in messages %}{{ m.content }}{% endfor %}</think>"})


def send(served: Served, **more: Any) -> Any:
    """A message."""
    return served.client.post("/v1/messages", json={"model": "tgi", "max_tokens": 8, "messages": [USER], **more})


def events_of(text: str) -> list[Any]:
    """The events of a stream, each under its own name and as documented."""
    *blocks, nothing = text.split("\n\n")
    assert nothing == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        TypeAdapter(MessageEvents).validate_python(events[-1])
    return events


def events(served: Served, **more: Any) -> list[Any]:
    """The events of a message."""
    return events_of(send(served, stream=True, **more).text)


def message(answer: Any) -> Any:
    """A complete message, as documented."""
    assert answer.status_code == 200, answer.text
    TypeAdapter(AnthropicMessage).validate_json(answer.content)
    return answer.json()


def prompt(serve: Serve, model: ServedModel, **more: Any) -> list[Any]:
    """What the template gets: the messages, whether to think, the effort, the number of tools."""
    served, generator = serve(changes={"chat_templates": ECHO}, scripted=ROOMY)
    answer = send(served, **more)
    assert answer.status_code == 200, answer.text
    messages, *others = model.tokenizer.decode(generator.submitted.get_nowait().input_ids).rsplit("|", 3)
    return [json.loads(messages), *others]


def test_answer(hello: Served) -> None:
    """A message has Anthropic's shape."""
    made = message(send(hello, model="claude"))
    assert made.pop("id").startswith("msg_") and made["usage"].pop("input_tokens") > 0
    assert made == {
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [{"type": "text", "text": "Hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 3},
    }


def test_ids(hello: Served) -> None:
    """The request id is also in the header that Anthropic's clients read."""
    answer = hello.client.post("/v1/messages", json={}, headers={"x-request-id": "r-1"})
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == "r-1"


def test_stream(hello: Served) -> None:
    """A stream has Anthropic's events in their order, with an event per token of text; there is no [DONE]."""
    start, *others = events(hello)
    assert start["message"].pop("usage")["output_tokens"] == 0 and start["message"].pop("id").startswith("msg_")
    empty = {"type": "message", "role": "assistant", "model": "tgi", "content": [], "stop_reason": None, "stop_sequence": None}
    assert start == {"type": "message_start", "message": empty}
    assert others[-2]["usage"].pop("input_tokens") > 0
    usage = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 3}
    assert others == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " world"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    ("reason", "texts", "stop", "said"),
    [
        (FinishReason.EOS_TOKEN, ("a", "b"), ("end_turn", None), "ab"),
        (FinishReason.LENGTH, ("a", "b"), ("max_tokens", None), "ab"),
        (FinishReason.STOP_SEQUENCE, ("a", "X", "Y"), ("stop_sequence", "XY"), "a"),
        (FinishReason.EOS_TOKEN, (), ("end_turn", None), ""),
    ],
)
def test_why_it_ends(serve: Serve, reason: FinishReason, texts: tuple[str, ...], stop: Any, said: str) -> None:
    """The reason of the end, and the stop sequence, which is not a part of the text; the same in a stream."""
    served, _ = serve(lambda request: says(*texts, reason=reason))
    made = message(send(served, stop_sequences=["XY", "Y"]))
    assert (made["stop_reason"], made["stop_sequence"]) == stop and made["content"] == [{"type": "text", "text": said}]
    streamed = events(served, stop_sequences=["XY", "Y"])
    assert tuple(streamed[-2]["delta"].values()) == stop
    assert "".join(each["delta"].get("text", "") for each in streamed if each["type"] == "content_block_delta") == said


def test_tool_use(serve: Serve) -> None:
    """Text and uses of tools are blocks, in their order; the reason is tool_use."""
    script = lambda request: says("Sure.", "<tool_call>", ONE[:20], ONE[20:], "</tool_call>", f"<tool_call>{ONE}</tool_call>")  # noqa: E731
    served, _ = serve(script, scripted=ROOMY)
    made = message(send(served, tools=TOOLS))
    text, first, second = made["content"]
    assert text == {"type": "text", "text": "Sure."} and made["stop_reason"] == "tool_use"
    assert first["id"].startswith("toolu_") and first["id"] != second["id"]
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "f", {"a": '}"{', "b": [1, {}]})
    streamed = events(served, tools=TOOLS)
    starts = [each["content_block"] for each in streamed if each["type"] == "content_block_start"]
    assert [each["type"] for each in starts] == ["text", "tool_use", "tool_use"] and starts[1]["input"] == {}
    pieces = [each for each in streamed if each["type"] == "content_block_delta" and each["index"] == 1]
    assert json.loads("".join(each["delta"]["partial_json"] for each in pieces)) == first["input"]
    indexes = [each["index"] for each in streamed if "index" in each]
    assert indexes == sorted(indexes) and streamed[-2]["delta"]["stop_reason"] == "tool_use"


def test_tool_use_that_is_cut_off(serve: Serve) -> None:
    """What there is of the arguments is an object."""
    served, _ = serve(lambda request: says(ONE[:36], reason=FinishReason.LENGTH), scripted=ROOMY)
    made = message(send(served, tools=TOOLS))
    assert made["stop_reason"] == "max_tokens" and made["content"][0]["input"] == {"a": "}"}


def test_choices_of_tools(serve: Serve) -> None:
    """`any` and `tool` demand a call; `auto` and `none` do not."""
    served, generator = serve(lambda request: says(ONE), scripted=ROOMY)
    for choice, demanded in (({"type": "any"}, True), ({"type": "tool", "name": "f"}, True), ({"type": "auto"}, False)):
        assert message(send(served, tools=TOOLS, tool_choice=choice))["stop_reason"] == "tool_use"
        assert (generator.submitted.get_nowait().grammar is not None) is demanded
    assert message(send(served, tools=TOOLS, tool_choice={"type": "none"}))["content"] == [{"type": "text", "text": ONE}]
    one = send(served, tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    generator.submitted.get_nowait()
    assert one.status_code == 200 and '"array"' not in generator.submitted.get_nowait().grammar.source


def test_round_trip(serve: Serve, model: ServedModel) -> None:
    """Turns become messages: results of tools first, a failed one marked, texts joined, what was thought beside the answer."""
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]},
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Sure."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "t2", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "no"}], "is_error": True},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    system = [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "t"}]
    [messages, *_] = prompt(serve, model, messages=turns, system=system)
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [each["content"] for each in messages] == ["st", "abc", "Sure.", "one", "Error: no", "Go on."]
    assert messages[2]["reasoning_content"] == "hm"
    assert [messages[place]["tool_call_id"] for place in (3, 4)] == ["t1", "t2"]
    uses = [(use["id"], use["function"]["name"], use["function"]["arguments"]) for use in messages[2]["tool_calls"]]
    assert uses == [("t1", "f", {"x": 1}), ("t2", "f", {})]


def test_variables_of_the_template(serve: Serve, model: ServedModel) -> None:
    """Thinking is off unless it is asked for; the effort is passed on."""
    assert prompt(serve, model)[1:3] == ["False", ""]
    effort = {"effort": "low"}
    assert prompt(serve, model, thinking={"type": "enabled", "budget_tokens": 9}, output_config=effort)[1:3] == ["True", "low"]
    assert prompt(serve, model, thinking={"type": "disabled"}, tools=TOOLS)[1:] == ["False", "", "1"]


def test_thinking(serve: Serve) -> None:
    """Reasoning between the tags of the model's template is a block of its own, without tags and the white space around them."""
    served, _ = serve(
        lambda request: says("<think>", "\nhm", "\n", "\nso", "\n</thi", "nk>\n\n", "Hi", " there"),
        changes={"chat_templates": THINKING},
    )
    thought = {"type": "thinking", "thinking": "hm\n\nso", "signature": "unsigned"}
    assert message(send(served))["content"] == [thought, {"type": "text", "text": "Hi there"}]
    deltas = [each["delta"] for each in events(served) if each["type"] == "content_block_delta"]
    assert "".join(each.get("thinking", "") for each in deltas) == "hm\n\nso"
    assert {"type": "signature_delta", "signature": "unsigned"} in deltas


def test_no_thinking_under_a_grammar(serve: Serve) -> None:
    """What a grammar constrains has no reasoning, even if the prompt opens it."""
    served, _ = serve(lambda request: says('{"a":', "null}"), changes={"chat_templates": THINKING})
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    made = message(send(served, output_config={"format": {"type": "json_schema", "schema": schema}}))
    assert made["content"] == [{"type": "text", "text": '{"a":null}'}]


def test_structured(serve: Serve) -> None:
    """A format reaches the shard as a grammar."""
    served, generator = serve(lambda request: says("1"))
    assert send(served, output_config={"format": {"type": "json_schema", "schema": {"type": "integer"}}}).status_code == 200
    assert generator.submitted.get_nowait().grammar.source == '{"type":"integer"}'


def test_parameters(serve: Serve) -> None:
    """The parameters of a message reach the shard."""
    served, generator = serve()
    assert send(served, temperature=0.5, top_p=0.5, top_k=7, stop_sequences=["x"]).status_code == 200
    request = generator.submitted.get_nowait()
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.5, 7)
    assert request.stopping.max_new_tokens == 8 and request.stopping.stop == ("x",)


def test_count_tokens(serve: Serve) -> None:
    """The count is that of the message's prompt, whatever its length; nothing is generated."""
    served, generator = serve(scripted=ROOMY)
    for turns in ([USER], [{"role": "user", "content": "word " * 400}]):
        answer = served.client.post("/v1/messages/count_tokens", json={"model": "tgi", "messages": turns, "tools": TOOLS})
        usage = message(send(served, messages=turns, tools=TOOLS))["usage"]
        assert answer.json() == {"input_tokens": usage["input_tokens"]}
        generator.submitted.get_nowait()
    assert generator.submitted.empty()


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_tokens": 0}, "`max_tokens` must be strictly positive"),
        ({"temperature": -1}, "`temperature` must be"),
        ({"messages": []}, "`messages` must have at least one message"),
        ({"stop_sequences": ["x"] * 100}, "`stop_sequences` supports up to"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "image modality is not supported"),
        ({"messages": [{"role": "assistant", "content": [IMAGE]}]}, "only the user's turns can have content of the type `image`"),
        (
            {"messages": [{"role": "user", "content": [{**IMAGE, "type": "thinking", "thinking": "x"}]}]},
            "only the assistant's turns can have content of the type `thinking`",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "x" * 100}]}]}, f"`{'x' * 64}…`"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "missing field `text`"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, "only the assistant's turns"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "only the user's turns",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}]}]},
            "content of the type `image` is not supported here",
        ),
        ({"system": [IMAGE]}, "content of the type `image` is not supported here"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "`tools` of the type `web_search_20250305`"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "must have a `name`"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, "Tool with name g not found"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "`messages` tokens + `max_tokens` must be <="),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_invalid(hello: Served, given: dict[str, Any], told: str, stream: bool) -> None:
    """An invalid request is 400 with Anthropic's error object, which says what is wrong in the caller's words."""
    answer = send(hello, stream=stream, **given)
    TypeAdapter(AnthropicErrorResponse).validate_json(answer.content)
    assert answer.status_code == 400 and answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and told in error["message"], error


def test_errors_of_routes_and_bodies(hello: Served) -> None:
    """Wrong paths, methods and bodies have Anthropic's form and their own status."""
    for answer, status, kind in (
        (hello.client.get("/v1/messages"), 405, "invalid_request_error"),
        (hello.client.post("/v1/messages/batches", json={}), 404, "not_found_error"),
        (
            hello.client.post("/v1/messages", content=b"{", headers={"content-type": "application/json"}),
            400,
            "invalid_request_error",
        ),
        (hello.client.post("/v1/messages", content=b"{}"), 415, "invalid_request_error"),
        (
            hello.client.post("/v1/messages", content=b" " * 3_000_000, headers={"content-type": "application/json"}),
            413,
            "request_too_large",
        ),
    ):
        TypeAdapter(AnthropicErrorResponse).validate_json(answer.content)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


def test_overload(serve: Serve) -> None:
    """A full server is a rate limit, with a time to come back; once by its head, once by the app."""
    served, generator = serve(lambda request: [*says("a")[:1], HOLD], max_concurrent_requests=1)
    body = json.dumps({"model": "tgi", "max_tokens": 8, "messages": [USER], "stream": True})
    with served.send("/v1/messages", body) as held:
        read_until(held, b"text_delta")
        for headers in ({}, {"origin": "http://a.example"}):
            answer = served.client.post("/v1/messages", content=body, headers={**headers, "content-type": "application/json"})
            assert answer.status_code == 429 and answer.headers["retry-after-ms"] and answer.headers["request-id"]
            assert answer.json() == {"type": "error", "error": {"type": "rate_limit_error", "message": "Model is overloaded"}}
    assert generator.cancelled.get(timeout=5) is generator.submitted.get_nowait()


def test_a_fault_within_a_stream(serve: Serve) -> None:
    """An error after the first token is an event, the last one; before it has a status."""
    served, _ = serve(lambda request: [*says("a", "b")[:1], RequestFailed("boom")])
    *_, last = events(served)
    assert last["type"] == "error" and last["error"]["type"] == "api_error" and "boom" in last["error"]["message"]
    answer = send(served)
    assert answer.status_code == 424 and answer.json()["error"]["type"] == "api_error"


def test_not_strictly_tgi(serve: Serve) -> None:
    """TGI has no such routes."""
    served, _ = serve(strict_tgi=True)
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses"):
        answer = served.client.post(path, json={"model": "tgi", "max_tokens": 8, "messages": [USER], "input": "Hi"})
        assert (answer.status_code, answer.content) == (404, b"")


def test_tags() -> None:
    """The tags are those that a template mentions."""
    assert ECHO.reasoning is None and THINKING.reasoning == ReasoningTags("<think>", "</think>")
