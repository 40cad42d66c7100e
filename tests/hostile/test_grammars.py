"""Grammars, schemas and regular expressions that broke engines, on every carrier."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import pytest
from tgi_router import ServedModel

from tests.grammar.hostile import SHAPES
from tests.hostile.server import ServerUnderTest, opened
from tests.hostile.watch import Canary, Watch

GROUP = 20
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
NATIVE: dict[str, Any] = {"max_new_tokens": 3}


def native(shape: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """TGI's carriers of a grammar."""
    parameters = {**NATIVE, "grammar": shape}
    yield "/generate", {"inputs": "Hi", "parameters": parameters}
    yield "/", {"inputs": "Hi", "parameters": parameters, "stream": False}
    yield "/invocations", {"inputs": "Hi", "parameters": parameters}
    yield "/vertex", {"instances": [{"inputs": "Hi", "parameters": parameters}]}
    yield "/v2/models/m/infer", {"inputs": [{"name": "a", "data": ["Hi"]}], "outputs": [{"name": "b"}], "parameters": parameters}


def formats(shape: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Response formats: TGI's shape, OpenAI's, and LangChain's."""
    yield "/v1/chat/completions", {**CHAT, "response_format": shape}
    if shape.get("type") == "json":
        schema = shape.get("value")
        named = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
        yield "/v1/chat/completions", {**CHAT, "response_format": named}
        yield "/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object", "schema": schema}}
        yield "/v1/chat/completions", {**CHAT, "response_format": {"type": "json_schema", "value": {"schema": schema}}}


def tools(shape: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemas of tools that must be called, that one that must be, and those that may be."""
    if shape.get("type") != "json":
        return
    for field, choice in (
        ("parameters", "required"),
        ("arguments", {"type": "function", "function": {"name": "f"}}),
        ("parameters", "auto"),
    ):
        tool = {"type": "function", "function": {"name": "f", field: shape.get("value")}}
        yield "/v1/chat/completions", {**CHAT, "tools": [tool], "tool_choice": choice}


def statuses(instance: ServerUnderTest, bodies: Iterator[tuple[str, dict[str, Any]]]) -> list[int]:
    """What the carriers of one shape were answered; only those that are good cost a step."""
    return [instance.refuses_or_answers(path, json.dumps(body)) for path, body in bodies]


@pytest.mark.parametrize("start", range(0, len(SHAPES), GROUP))
def test_on_every_carrier(instance: ServerUnderTest, start: int) -> None:
    """Each shape is refused on all of TGI's carriers, or on none; as a response format in all shapes of those, and as a tool's schema, it
    is refused or kept to. Its outcome is remembered: only the tool's, which is part of a larger schema, is tried anew."""
    for shape in SHAPES[start : start + GROUP]:
        found = statuses(instance, native(shape))
        assert len({status == 200 for status in found}) == 1, (found, str(shape)[:200])
        statuses(instance, formats(shape))
        statuses(instance, tools(shape))


GUIDED: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": {"type": "stranger"}}, "Invalid type: stranger"), ({"guided_regex": "(" * 30_000}, "unclosed group"),
    ({"guided_choice": ["a" * 70_000]}, "grammar is not valid"), ({"guided_grammar": "start: start"}, "nothing can match it"),
    ({"structured_outputs": {"regex": "("}}, "unclosed group"), ({"regex": "("}, "unclosed group"),
    ({"ebnf": "("}, "expecting rule"), ({"structured_outputs": {"grammar": "r: r\n" * 4000}}, "more than 400 rules"),
    ({"logits_processors": ["os.system"]}, "`logits_processors` is not supported"),
]  # fmt: skip
NOT_LOOKED_INTO: list[dict[str, Any]] = [
    {"guided_decoding_backend": "../../x"}, {"structural_tag": "{"}, {"json_schema": {"type": 5}},
    {"grammar": {"type": "regex", "value": "("}},
    {"extra_body": {"guided_regex": "("}}, {"guided_whitespace_pattern": "(a+)+b"},
]  # fmt: skip
OPENAI_ROUTES = [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "temperature": 0})]


@pytest.mark.parametrize(("given", "reason"), GUIDED, ids=[next(iter(given)) for given, _ in GUIDED])
def test_carriers_of_other_servers(instance: ServerUnderTest, given: dict[str, Any], reason: str) -> None:
    """Grammars in vLLM's and SGLang's fields are as hostile as any: refused without a step, with the reason."""
    for path, body in OPENAI_ROUTES:
        answer = instance.refuses(path, {**body, **given})
        assert answer.status_code == 422 and reason in answer.text


@pytest.mark.parametrize(("given", "text"), [({"guided_choice": ["a"] * 10_000}, "a"), ({"guided_regex": "(a+)+b"}, "a")])
def test_large_grammars_of_other_servers(instance: ServerUnderTest, given: dict[str, Any], text: str) -> None:
    """Many choices, and an expression that backtracking engines hang in, hold the text."""
    for path, body in OPENAI_ROUTES:
        choice = instance.post(path, {**body, **given}).json()["choices"][0]
        assert (choice.get("text") or choice["message"]["content"]).startswith(text)


@pytest.mark.parametrize("given", NOT_LOOKED_INTO, ids=lambda given: next(iter(given)))
def test_fields_that_are_not_looked_into(instance: ServerUnderTest, given: dict[str, Any]) -> None:
    """Fields that this server does not know change nothing, and the response names them."""
    for path, body in OPENAI_ROUTES:
        answers = [instance.post(path, json.dumps(each)) for each in (body, {**body, **given})]
        assert answers[0].json()["choices"] == answers[1].json()["choices"]
        assert answers[1].headers["x-warning"] == f"ignored fields: {next(iter(given))}"


def test_nothing_is_fetched(instance: ServerUnderTest, canary: Canary) -> None:
    """References lead nowhere outside the schema."""
    address = f"http://127.0.0.1:{canary.port}/schema.json"
    schemas = [
        {"$ref": address}, {"$schema": address, "type": "integer"}, {"$id": address, "$ref": "#"}, {"properties": {"a": {"$ref": address}}},
        {"$ref": "file:///etc/passwd"}, {"allOf": [{"$ref": f"{address}#/a"}]}, {"$dynamicRef": address},
    {"type": "string", "format": address},
    ]  # fmt: skip
    with instance.watch.watching(instance.served.address) as watch:
        for schema in schemas:
            shape = {"type": "json", "value": schema}
            for bodies in (native(shape), formats(shape), tools(shape)):
                statuses(instance, bodies)
        assert watch.connections == [] and not [name for name in watch.files if "passwd" in name]


def test_others_in_flight_notice_nothing(instance: ServerUnderTest) -> None:
    """While hostile grammars come, eight honest streams, half of them with grammars, say what they say alone."""
    grammar = {
        "type": "json",
        "value": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 30}}, "required": ["a"]},
    }
    honest = [
        {"inputs": f"Once {number}", "parameters": {"max_new_tokens": 40, **({"grammar": grammar} if number % 2 else {})}}
        for number in range(8)
    ]
    alone = [instance.client.post("/generate_stream", json=body).text for body in honest]
    with ThreadPoolExecutor(8) as pool:
        riders = [pool.submit(instance.client.post, "/generate_stream", json=body) for body in honest * 2]
        for shape, (path, body) in zip(
            SHAPES[::12], cycle([("/generate", {"inputs": "x"}), ("/v1/chat/completions", CHAT)]), strict=False
        ):
            carried = {"response_format": shape} if "messages" in body else {"parameters": {**NATIVE, "grammar": shape}}
            instance.post(path, json.dumps({**body, **carried}))
        assert [rider.result().text for rider in riders] == alone * 2


def test_where_grammars_are_switched_off(model: ServedModel, watch: Watch) -> None:
    """--disable-grammar-support refuses every carrier in TGI's words, a good grammar too, before anything is compiled."""
    good = {"type": "json", "value": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    with opened(model, watch, {"disable_grammar_support": True}) as other:
        for bodies in (native(good), formats(good), tools(good)):
            for path, body in bodies:
                if body.get("tool_choice") != "auto":
                    assert "Input validation error: grammar is not supported" in other.refuses(path, body).text
        other.check_unharmed()
