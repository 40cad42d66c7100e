"""Tools in, tool calls out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tgi_router.errors import ToolFailed
from tgi_router.openai_bodies import ChatBody
from tgi_router.tool_calls import Piece, ToolCallReader
from tgi_router.tools import plan_tools

from tests.router.conftest import Serve
from tests.router.scripted import says
from tests.router.test_openai import chat, chunks
from tgi_core.scheduler.types import Limits
from tgi_core.wire.types import FinishReason

ROOMY = {"limits": Limits(2000, 2048)}
NAMES = frozenset({"f", "g"})
ONE = '{"name": "f", "arguments": {"a": "}\\"{", "b": [1, {}]}}'


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    """A tool of a request."""
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


def read(text: str, size: int = 1) -> tuple[str, list[tuple[str, str]]]:
    """Text and calls in what a model wrote, which comes in pieces of `size`."""
    reader = ToolCallReader(NAMES)
    pieces: list[Piece] = []
    for start in range(0, len(text), size):
        pieces += reader.push(text[start : start + size])
    pieces += reader.finish()
    names = [piece.name for piece in pieces if piece.name is not None]
    arguments = ["".join(piece.text for piece in pieces if piece.call == place) for place in range(len(names))]
    return "".join(piece.text for piece in pieces if piece.call is None), list(zip(names, arguments, strict=True))


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        (ONE, "", [("f", '{"a": "}\\"{", "b": [1, {}]}')]),
        (f" \n{ONE}", "", [("f", '{"a": "}\\"{", "b": [1, {}]}')]),
        ('{"name":"g","parameters":{}}', "", [("g", "{}")]),
        ('[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"q": 1}}]', "", [("f", "{}"), ("g", '{"q": 1}')]),
        ('{"name": "f", "arguments": {}}; {"name": "g", "arguments": {}}', "", [("f", "{}"), ("g", "{}")]),
        ('Sure.<tool_call>\n{"name":"g","arguments":{}}\n</tool_call>', "Sure.", [("g", "{}")]),
        (
            '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>\n<tool_call>{"name":"g","arguments":{}}</tool_call>',
            "",
            [("f", '{"x":1}'), ("g", "{}")],
        ),
        ('{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
        ('{"name": "f", "arguments": {}} and more', " and more", [("f", "{}")]),
        ('<<tool_call> {"name":"f","arguments":{}}', "<", [("f", "{}")]),
    ],
)
def test_calls_are_found(text: str, said: str, calls: list[tuple[str, str]]) -> None:
    """Calls in the forms that models write, whole or cut off, however they come in pieces."""
    for size in (1, 2, 3, 7, len(text)):
        assert read(text, size) == (said, calls)


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "Hello", 'Say {"name": "f", "arguments": {}}', '{"name": "h", "arguments": {}}', '{"a": 1} then', " \n[1, 2]",
        "<tool_call>nope", "x <tool_", '{"name": "f", "argu', '<tool_call>{"x": 1}</tool_call>', '{"name": "f", "arguments": 5}',
        '{"name": ["f"], "arguments": {}}', "[" * 200 + ONE, "{" * 3000 + "}" * 3000, '{"name": "f", "arguments": "{}"}',
    ],
)  # fmt: skip
def test_all_else_is_text(text: str) -> None:
    """What is no call of a known function stays as it was written."""
    for size in (1, 5, len(text) or 1):
        assert read(text, size) == (text, [])


@given(st.text(st.sampled_from('{}[]"\\:, \n<>/_acelmnortuf1'), max_size=80), st.integers(1, 9))
def test_no_text_breaks_it(text: str, size: int) -> None:
    """Any text is read without a fault, the same however it comes; without a call it is unchanged."""
    said, calls = read(text, size)
    assert (said, calls) == read(text, len(text) or 1)
    assert calls or said == text


def plan(**more: Any) -> Any:
    """The plan for a body."""
    return plan_tools(ChatBody.model_validate({"messages": [], **more}))


def test_choices() -> None:
    """auto lets the model choose, required and a name demand a call; none, and nothing to choose from, is plain chat."""
    tools = [tool("f"), tool("g")]
    assert plan() is plan(tools=[]) is plan(tools=[], tool_choice="required") is plan(tools=tools, tool_choice="none") is None
    assert plan(tools=tools).schema is plan(tools=tools, tool_choice="auto").schema is None
    named = plan(tools=tools, tool_choice={"type": "function", "function": {"name": "g"}})
    assert named.names == {"g"} and named.schema["properties"]["name"] == {"const": "g"}
    assert "anyOf" in plan(tools=tools, tool_choice="required").schema
    assert "items" not in json.dumps(plan(tools=tools, tool_choice="required", parallel_tool_calls=False).schema)
    with pytest.raises(ToolFailed, match="Tool with name h not found"):
        plan(tools=tools, tool_choice="h")
    with pytest.raises(ToolFailed, match="must be a JSON schema"):
        plan(tools=[{"type": "function", "function": {"name": "f", "parameters": [1]}}], tool_choice="required")


def test_allowed_tools() -> None:
    """`allowed_tools` is as if only these tools were given, with a mode that is one of the other choices."""
    tools = [tool("f"), tool("g"), tool("h")]

    def allowed(mode: str, *names: str) -> Any:
        named = [{"type": "function", "function": {"name": name}} for name in names]
        return plan(tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}})

    auto = allowed("auto", "g", "h")
    assert auto.names == {"g", "h"} and auto.schema is None and [each.function.name for each in auto.tools] == ["g", "h"]
    assert '"const": "f"' not in json.dumps(allowed("required", "g", "h").schema)
    assert allowed("required", "g").names == {"g"}
    for names, text in ((("x",), "Tool with name x not found"), ((), "names no tool")):
        with pytest.raises(ToolFailed, match=text):
            allowed("auto", *names)


def test_references_are_moved() -> None:
    """References inside a function's schema still lead to the same place; what only looks like one is left alone."""
    point = {"properties": {"x": {"$ref": "#/$defs/n"}, "$ref": {"type": "string"}}, "default": {"$ref": "#"}}
    parameters = {"$defs": {"n": {"type": "integer"}}, "type": "object", "properties": {"p": point, "self": {"$ref": "#"}}}
    schema = plan(tools=[tool("f", **parameters)], tool_choice="f").schema
    moved = schema["$defs"]["f0"]["properties"]
    assert moved["p"]["properties"]["x"] == {"$ref": "#/$defs/f0/$defs/n"}
    assert moved["p"]["properties"]["$ref"] == {"type": "string"} and moved["p"]["default"] == {"$ref": "#"}
    assert moved["self"] == {"$ref": "#/$defs/f0"}


def test_demanded_calls_are_constrained(serve: Serve) -> None:
    """A demanded call reaches the shard as a grammar; with auto there is none; a schema that is none is told as such."""
    served, generator = serve(lambda request: says(ONE), scripted=ROOMY)
    tools = [tool("f", type="object", properties={"a": {"type": "integer"}}), tool("g")]
    for choice in ("required", "f", "auto"):
        assert chat(served, tools=tools, tool_choice=choice).status_code == 200
    grammars = [generator.submitted.get_nowait().grammar for _ in range(3)]
    assert [grammar is None for grammar in grammars] == [False, False, True]
    answer = chat(served, tools=[tool("f", type="nope")], tool_choice="f")
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("Input validation error: grammar is not valid: ")


def test_message(serve: Serve) -> None:
    """A call is told with an id, its name and its arguments as text; the reason is tool_calls."""
    served, _ = serve(
        lambda request: says("Sure. ", f"<tool_call>{ONE}</tool_call>", f"<tool_call>{ONE}</tool_call>"), scripted=ROOMY
    )
    [choice] = chat(served, tools=[tool("f")]).json()["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Sure. "
    first, second = choice["message"]["tool_calls"]
    assert first["id"].startswith("call_") and first["id"] != second["id"]
    assert first["function"] == {"name": "f", "arguments": '{"a": "}\\"{", "b": [1, {}]}'}
    served, _ = serve(lambda request: says(ONE[:40], reason=FinishReason.LENGTH), scripted=ROOMY)
    [choice] = chat(served, tools=[tool("f")]).json()["choices"]
    assert choice["message"]["content"] is None and choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == ONE[27:40]


def test_deltas(serve: Serve) -> None:
    """In a stream a call begins with its id and name, its arguments follow, and a last chunk says tool_calls."""
    served, _ = serve(lambda request: says(*(ONE[start : start + 5] for start in range(0, len(ONE), 5))), scripted=ROOMY)
    *deltas, last = [each["choices"][0] for each in chunks(chat(served, tools=[tool("f")], stream=True).text)]
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
    first, *others = [each["delta"] for each in deltas]
    assert first["role"] == "assistant" and first["tool_calls"][0]["function"]["name"] == "f"
    assert all(set(each) == {"tool_calls"} and set(each["tool_calls"][0]) == {"index", "function"} for each in others)
    arguments = [each["tool_calls"][0]["function"]["arguments"] for each in (first, *others)]
    assert json.loads("".join(arguments)) == {"a": '}"{', "b": [1, {}]}


def test_answers_in_words(serve: Serve) -> None:
    """With auto a model may answer in words, streamed as they come."""
    served, _ = serve(lambda request: says("It is", " {sunny}", "."), scripted=ROOMY)
    assert chat(served, tools=[tool("f")]).json()["choices"][0]["message"] == {"role": "assistant", "content": "It is {sunny}."}
    streamed = [each["choices"][0] for each in chunks(chat(served, tools=[tool("f")], stream=True).text)]
    assert [each["delta"].get("content") for each in streamed] == ["It is", " {sunny}", ".", ""]
    assert streamed[-1]["finish_reason"] == "stop"


FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "#/$defs/n", "$defs": {"n": {"enum": [1, 2]}}}}}


@pytest.mark.parametrize("more", [{}, {"tool_choice": "auto"}, {"parallel_tool_calls": False}])
@pytest.mark.parametrize(("text", "content", "called"), [("2", "2", False), (ONE, None, True)])
def test_a_call_or_an_answer_in_its_format(serve: Serve, more: dict[str, Any], text: str, content: str, called: bool) -> None:
    """With tools and a response format, one grammar allows a call or an answer that keeps the format, and nothing else."""
    served, generator = serve(lambda request: says(text), scripted=ROOMY)
    parameters = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}
    answer = chat(served, tools=[tool("f", **parameters)], response_format=FORMAT, **more)
    message = answer.json()["choices"][0]["message"]
    assert (message["content"], "tool_calls" in message) == (content, called)
    grammar = generator.submitted.get_nowait().grammar
    assert grammar is not None
    judge = Draft202012Validator(json.loads(grammar.source))
    assert all(judge.is_valid(good) for good in (1, 2, json.loads(ONE)))
    assert not any(
        judge.is_valid(bad) for bad in (3, "text", {"name": "g", "arguments": {}}, {"name": "f", "arguments": {"a": 1}})
    )
    assert judge.is_valid([json.loads(ONE)]) is (more.get("parallel_tool_calls") is None)


def test_a_demanded_call_comes_before_the_format(serve: Serve) -> None:
    """A demanded call is no answer; without a choice of tools the format holds as ever."""
    served, generator = serve(lambda request: says(ONE), scripted=ROOMY)
    for choice in ("required", "none"):
        assert chat(served, tools=[tool("f")], response_format=FORMAT, tool_choice=choice).status_code == 200
    called, answered = [json.loads(generator.submitted.get_nowait().grammar.source) for _ in range(2)]
    assert not Draft202012Validator(called).is_valid(1) and answered == FORMAT["json_schema"]["schema"]


def test_what_cannot_be_combined(serve: Serve) -> None:
    """A regular expression beside tools is refused with the reason; a format that is none, too."""
    served, _ = serve(lambda request: says(ONE), scripted=ROOMY)
    for response_format, text in (
        ({"type": "regex", "value": "a"}, "Tool error: `tools` cannot be combined with a `response_format` of the type `regex`"),
        (
            {"type": "json_schema", "schema": {}},
            "Input validation error: grammar is not valid: the type `json_schema` has no field",
        ),
    ):
        answer = chat(served, tools=[tool("f")], response_format=response_format)
        assert answer.status_code == 422 and answer.json()["error"]["message"].startswith(text)
