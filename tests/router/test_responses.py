"""POST /v1/responses: OpenAI's Responses API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tgi_router import ServedModel
from tgi_router.responses_answers import ResponseEvents, ResponseObject

from tests.router.conftest import Serve
from tests.router.scripted import HOLD, says
from tests.router.serving import Served, read_until
from tests.router.test_messages import ECHO, ROOMY, THINKING
from tests.router.test_tools import ONE
from tgi_core.scheduler.types import RequestFailed
from tgi_core.wire.types import FinishReason

TOOLS = [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}]
PARSER: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
"""OpenAI's own types."""


def send(served: Served, **more: Any) -> Any:
    """A response."""
    return served.client.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 8, **more})


def complete(answer: Any) -> Any:
    """A complete response, as documented and as OpenAI's client reads it."""
    assert answer.status_code == 200, answer.text
    TypeAdapter(ResponseObject).validate_json(answer.content)
    Response.model_validate_json(answer.content)
    return answer.json()


def events(served: Served, **more: Any) -> list[Any]:
    """The events of a response, numbered, each under its own name, as documented and as OpenAI's client reads it."""
    *blocks, nothing = send(served, stream=True, **more).text.split("\n\n")
    assert nothing == ""
    found = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert (name, found[-1]["sequence_number"]) == (f"event: {found[-1]['type']}", number)
        TypeAdapter(ResponseEvents).validate_python(found[-1])
        PARSER.validate_python(found[-1])
    return found


def kinds(found: list[Any]) -> list[str]:
    """The types of events, in short."""
    return [each["type"].removeprefix("response.") for each in found]


def prompt(serve: Serve, model: ServedModel, **more: Any) -> list[Any]:
    """What the template gets: the messages, whether to think, the effort, the number of tools."""
    served, generator = serve(changes={"chat_templates": ECHO}, scripted=ROOMY)
    complete(send(served, **more))
    messages, *others = model.tokenizer.decode(generator.submitted.get_nowait().input_ids).rsplit("|", 3)
    return [json.loads(messages), *others]


def test_answer(hello: Served) -> None:
    """A response has OpenAI's shape, repeats its request, and is not stored."""
    made = complete(send(hello, temperature=0.7))
    [item] = made["output"]
    assert made["id"].startswith("resp_") and item.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": "Hello world", "annotations": [], "logprobs": []}
    assert item == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert (made["status"], made["model"], made["store"], made["temperature"]) == ("completed", "demo", False, 0.7)
    usage = made["usage"]
    assert usage["output_tokens"] == 3 and usage["total_tokens"] == usage["input_tokens"] + 3
    asked = {"format": {"type": "json_object"}}
    other = complete(send(hello, model="gpt", text=asked, tools=TOOLS, tool_choice="none", parallel_tool_calls=False))
    assert (other["model"], other["text"], other["tool_choice"], other["parallel_tool_calls"]) == ("gpt", asked, "none", False)
    assert other["tools"] == [{**TOOLS[0], "strict": False}]


def test_stream(hello: Served) -> None:
    """A stream has OpenAI's events in their order, with an event per token of text; there is no [DONE]."""
    found = events(hello)
    assert kinds(found) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [found[place]["delta"] for place in (4, 5)] == ["Hello", " world"]
    assert found[0]["response"]["status"] == "in_progress" and found[0]["response"]["output"] == []
    assert found[2]["item"]["content"] == [] and found[2]["item"]["status"] == "in_progress"
    last = found[-1]["response"]
    assert last["output"] == [found[-2]["item"]] and last["output"][0]["content"][0]["text"] == "Hello world"
    assert last["id"] == found[0]["response"]["id"] and last["usage"]["output_tokens"] == 3
    assert len({each["item_id"] for each in found if "item_id" in each}) == 1


def test_cut_off(serve: Serve) -> None:
    """A response that reaches its limit is incomplete, and so is its last item."""
    served, _ = serve(lambda request: says("a", "b", reason=FinishReason.LENGTH))
    made = complete(send(served))
    assert made["incomplete_details"] == {"reason": "max_output_tokens"} and made["completed_at"] is None
    found = events(served)
    assert kinds(found)[-1] == made["status"] == found[-2]["item"]["status"] == made["output"][0]["status"] == "incomplete"


def test_function_calls(serve: Serve) -> None:
    """Calls are items of their own, after the text before them."""
    served, _ = serve(
        lambda request: says("Sure.", "<tool_call>", ONE[:20], ONE[20:], "</tool_call>", f"<tool_call>{ONE}</tool_call>"),
        scripted=ROOMY,
    )
    text, first, second = complete(send(served, tools=TOOLS))["output"]
    assert text["content"][0]["text"] == "Sure."
    assert first["call_id"].startswith("call_") and first["call_id"] != second["call_id"]
    assert (first["type"], first["name"]) == ("function_call", "f")
    assert json.loads(first["arguments"]) == json.loads(second["arguments"]) == {"a": '}"{', "b": [1, {}]}
    found = events(served, tools=TOOLS)
    deltas = [each["delta"] for each in found if each["type"].endswith("arguments.delta") and each["output_index"] == 1]
    [done, _] = [each for each in found if each["type"].endswith("arguments.done")]
    assert "".join(deltas) == done["arguments"] == first["arguments"]
    added = [each["item"] for each in found if each["type"].endswith("item.added")]
    assert [each["type"] for each in added] == ["message", "function_call", "function_call"] and added[1]["arguments"] == ""
    assert [each["type"] for each in found[-1]["response"]["output"]] == [each["type"] for each in added]


def test_namespaces(serve: Serve, model: ServedModel) -> None:
    """The model calls a function of a namespace by both names; clients get and send them apart."""
    tools = [{"type": "namespace", "name": "n", "description": "d", "tools": TOOLS}]
    served, _ = serve(lambda request: says('{"name": "n.f", "arguments": {}}'), scripted=ROOMY)
    made = complete(send(served, tools=tools, tool_choice="required"))
    [call] = made["output"]
    assert (call["name"], call["namespace"]) == ("f", "n") and made["tools"][0]["tools"][0]["name"] == "f"
    [done] = [each for each in events(served, tools=tools) if each["type"].endswith("arguments.done")]
    assert (done["name"], done["namespace"]) == ("f", "n")
    [messages, *_] = prompt(serve, model, input=[{"role": "user", "content": "Hi"}, call, {"role": "user", "content": "Hi"}])
    assert messages[1]["tool_calls"][0]["function"]["name"] == "n.f"


@pytest.mark.parametrize(
    ("choice", "demanded"),
    [
        ("auto", False),
        ("required", True),
        ({"type": "function", "name": "f"}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, False),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, True),
    ],
)
def test_choices_of_tools(serve: Serve, choice: Any, demanded: bool) -> None:
    """A call that must be made is a grammar."""
    served, generator = serve(lambda request: says(ONE), scripted=ROOMY)
    made = complete(send(served, tools=TOOLS, tool_choice=choice))
    assert made["output"][0]["type"] == "function_call" and made["tool_choice"] == choice
    assert (generator.submitted.get_nowait().grammar is not None) is demanded


def test_round_trip(serve: Serve, model: ServedModel) -> None:
    """Items become messages: those of one turn of the assistant one message, instructions and what developers say a system's."""
    items = [
        {"role": "developer", "content": "d"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Sure.", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"x":1}', "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "c"},
    ]
    [messages, *_] = prompt(serve, model, input=items, instructions="s")
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert [each["content"] for each in messages] == ["sd", "ab", "Sure.", "one", "two", "No.", "c"]
    calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in messages[2]["tool_calls"]]
    assert calls == [("c1", "f", {"x": 1}), ("c2", "f", {})]
    assert [messages[place].get("reasoning_content") for place in (2, 5)] == ["hm", "so"]
    assert [messages[place]["tool_call_id"] for place in (3, 4)] == ["c1", "c2"]


def test_a_response_is_the_next_input(serve: Serve, model: ServedModel) -> None:
    """What a response has as output is accepted as input, item for item."""
    served, _ = serve(
        lambda request: says("<think>hm</think>", "Sure.", f"<tool_call>{ONE}</tool_call>"),
        changes={"chat_templates": THINKING},
        scripted=ROOMY,
    )
    output = complete(send(served, tools=TOOLS))["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    result = {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "x"}
    [messages, *_] = prompt(serve, model, input=[{"role": "user", "content": "Hi"}, *output, result])
    assert [each["role"] for each in messages] == ["user", "assistant", "tool"]
    assert messages[1]["reasoning_content"] == "hm" and messages[1]["content"] == "Sure."


def test_variables_of_the_template(serve: Serve, model: ServedModel) -> None:
    """The effort is passed on; none turns thinking off."""
    assert prompt(serve, model)[1:] == ["", "", "0"]
    assert prompt(serve, model, reasoning={"effort": "low"}, tools=TOOLS)[1:] == ["", "low", "1"]
    assert prompt(serve, model, reasoning={"effort": "none"})[1:3] == ["False", ""]


def test_reasoning(serve: Serve) -> None:
    """Reasoning between the tags of the model's template is an item before the message, and its tokens are counted."""
    served, _ = serve(
        lambda request: says("<think>", "\nhm", "\n", "so", "\n</think>", "\n\nHi"), changes={"chat_templates": THINKING}
    )
    made = complete(send(served))
    thought, said = made["output"]
    assert thought["type"] == "reasoning" and thought["content"] == [{"type": "reasoning_text", "text": "hm\nso"}]
    assert said["content"][0]["text"] == "Hi" and made["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    found = events(served)
    deltas = [each["delta"] for each in found if each["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == "hm\nso" and kinds(found).index("reasoning_text.done") < kinds(found).index("output_text.delta")


def test_structured(serve: Serve) -> None:
    """A format reaches the shard as a grammar."""
    served, generator = serve(lambda request: says("1"))
    format = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}, "strict": True}
    assert complete(send(served, text={"format": format}))["text"] == {"format": format}
    assert generator.submitted.get_nowait().grammar.source == '{"type":"integer"}'
    assert complete(send(served, text={"format": {"type": "text"}}))["output"]
    assert generator.submitted.get_nowait().grammar is None


def test_parameters(serve: Serve) -> None:
    """The parameters of a response reach the shard."""
    served, generator = serve()
    complete(send(served, temperature=0.5, top_p=0.5))
    request = generator.submitted.get_nowait()
    assert (request.sampling.temperature, request.sampling.top_p, request.stopping.max_new_tokens) == (0.5, 0.5, 8)


def asking(*content: Any) -> dict[str, Any]:
    """A body with a message of these parts."""
    return {"input": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_output_tokens": 0}, "`max_output_tokens` must be strictly positive"),
        ({"temperature": -1}, "`temperature` must be"),
        ({"input": []}, "`input` must have at least one item"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "`store: false`"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "items of the type `web_search_call` are not supported"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "missing field `name`"),
        (asking({"type": "input_image", "image_url": "x"}), "image modality is not supported"),
        (asking({"type": "input_image", "file_id": "x"}), "must have an `image_url`"),
        (asking({"type": "input_file", "file_id": "x"}), "content of the type `input_file` is not supported"),
        ({"tools": [{"type": "web_search"}]}, "`tools` of the type `web_search` are not supported"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "`tools` of the type `custom` are not supported"),
        ({"tools": [{"type": "function"}]}, "must have a `name`"),
        ({"tools": [{"type": "namespace"}]}, "must have a `name`"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]},
            "of the type `custom` are not supported",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "must have a `name`"),
        ({"tools": TOOLS, "tool_choice": {"type": "file_search"}}, "`tool_choice` of the type `file_search` is not supported"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "g"}}, "Tool with name g not found"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "must have a `schema`"),
        ({"include": ["message.output_text.logprobs"]}, "returns log probabilities"),
        ({"input": "word " * 9000}, "`input` tokens + `max_output_tokens` must be <="),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_invalid(hello: Served, given: dict[str, Any], told: str, stream: bool) -> None:
    """An invalid request is 400 with OpenAI's error object, which says what is wrong in the caller's words."""
    answer = send(hello, stream=stream, **given)
    assert answer.status_code == 400 and answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and told in error["message"], error


def test_a_fault_within_a_stream(serve: Serve) -> None:
    """An error after the stream has begun is its last event; before, it has a status."""
    served, _ = serve(lambda request: [*says("a", "b")[:1], RequestFailed("boom")])
    last = events(served)[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error" and "boom" in last["response"]["error"]["message"]
    assert last["response"]["output"][0]["content"][0]["text"] == "a"
    assert send(served).status_code == 424


def test_a_stream_that_is_left(serve: Serve) -> None:
    """A client that leaves in mid-stream ends its generation."""
    served, generator = serve(lambda request: [*says("a")[:1], HOLD])
    with served.send("/v1/responses", json.dumps({"input": "Hi", "stream": True})) as connection:
        read_until(connection, b"output_text.delta")
    assert generator.cancelled.get(timeout=5) is generator.submitted.get_nowait()
