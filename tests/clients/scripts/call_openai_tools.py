"""openai: tools, parsing into pydantic models, and response formats, sync and async."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
from asking_openai import ASKED, GREEDY, MODEL, client, create, make_client, script
from calls import ANSWER, raises
from pydantic import BaseModel

LONG: Any = GREEDY | {"max_tokens": 100}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


class Person(BaseModel):
    """What the model is to write."""

    kind: Literal["human", "robot"]
    adult: bool


def weather_of(arguments: str) -> dict[str, Any]:
    """Arguments that fit the function's schema."""
    given: dict[str, Any] = json.loads(arguments)
    assert set(given) == {"city", "days"} and given["city"] in {"Paris", "Rome"} and 1 <= given["days"] <= 9, given
    return given


@script.call
def tools_required() -> None:
    """A required call: id, name, and arguments as a string that fits the schema."""
    choice = create(tools=[WEATHER], tool_choice="required", max_tokens=100).choices[0]
    (called,) = choice.message.tool_calls
    assert called.id and called.type == "function" and called.function.name == "get_weather"
    assert weather_of(called.function.arguments) and choice.finish_reason == "tool_calls" and choice.message.content is None


@script.call
def tools_named() -> None:
    """The named one of two functions is called."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    (called,) = create(tools=[TIME, WEATHER], tool_choice=named, max_tokens=100).choices[0].message.tool_calls
    assert called.function.name == "get_weather" and weather_of(called.function.arguments)


@script.call
def tools_auto() -> None:
    """A model that calls nothing answers in words."""
    choice = create(tools=[WEATHER], tool_choice="auto").choices[0]
    assert choice.message.content and not choice.message.tool_calls and choice.finish_reason in {"stop", "length"}


@script.call
def tools_none() -> None:
    """With `none` no function is called."""
    assert not create(tools=[WEATHER], tool_choice="none").choices[0].message.tool_calls


@script.call
def tools_result() -> None:
    """A call and its result are taken back as history, so that an agent's loop ends."""
    first = create(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=100).choices[0].message
    messages = [*ASKED, first.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": called.id, "content": "sunny"} for called in first.tool_calls]
    answer = create(messages=messages, tools=[WEATHER], tool_choice="none").choices[0]
    assert answer.message.content is not None and answer.finish_reason in {"stop", "length"}


@script.call
def tools_stream() -> None:
    """Deltas of a call: id and name once, arguments in pieces, then the reason."""
    chunks = list(create(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=100, stream=True))
    deltas = [called for chunk in chunks for called in chunk.choices[0].delta.tool_calls or []]
    assert [called.id for called in deltas if called.id] and deltas[0].function.name == "get_weather"
    assert all(called.id is None and called.function.name is None and called.index == 0 for called in deltas[1:])
    assert weather_of("".join(called.function.arguments or "" for called in deltas))
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@script.call
def tools_stream_accumulated() -> None:
    """The client's accumulator joins the deltas of a strict function and parses its arguments."""
    tool = openai.pydantic_function_tool(Person, name="describe")
    given: Any = LONG | {"tools": [tool]}
    with client.chat.completions.stream(**given, tool_choice="required", parallel_tool_calls=False) as stream:
        kinds = {event.type for event in stream}
        choice = stream.get_final_completion().choices[0]
    (called,) = choice.message.tool_calls or []
    assert isinstance(called.function.parsed_arguments, Person) and called.function.name == "describe"
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds, kinds


@script.call
def parse_tools() -> None:
    """`parse` reads the arguments of a call into the model that defined the function."""
    tool = openai.pydantic_function_tool(Person, name="describe")
    answer = client.chat.completions.parse(**LONG, tools=[tool], tool_choice="required")
    calls = answer.choices[0].message.tool_calls or []
    assert calls and all(isinstance(called.function.parsed_arguments, Person) for called in calls)


@script.call
def parse_format() -> None:
    """`parse` gets an object of the pydantic model that was asked for."""
    answer = client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Person, temperature=0, max_tokens=100)
    assert isinstance(answer.choices[0].message.parsed, Person)


@script.call
def parse_beta() -> None:
    """The same under `.beta`."""
    answer = client.beta.chat.completions.parse(**LONG, response_format=Person)
    assert isinstance(answer.choices[0].message.parsed, Person)


@script.call
def parse_stream() -> None:
    """A streamed answer in a format ends parsed."""
    given: Any = LONG | {"response_format": Person}
    with client.chat.completions.stream(**given) as stream:
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Person)


@script.call
def parse_cut_off() -> None:
    """`parse` says so when max_tokens cuts the object off."""
    with raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Person, max_tokens=2)


@script.call
def format_json_schema() -> None:
    """`json_schema` by hand: the answer fits."""
    schema = {"type": "object", "properties": {"sum": {"enum": [11, 12]}}, "required": ["sum"], "additionalProperties": False}
    format_ = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema, "strict": True}}
    assert json.loads(create(response_format=format_, max_tokens=60).choices[0].message.content)["sum"] in {11, 12}


@script.call
def format_json_object() -> None:
    """`json_object`: the answer is an object, or the beginning of one."""
    asked = [{"role": "user", "content": "Write a JSON object for a person."}]
    choice = create(messages=asked, response_format={"type": "json_object"}, max_tokens=200).choices[0]
    assert choice.message.content.lstrip().startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


@script.call
def format_text() -> None:
    """`text` is what there is without a format."""
    assert create(response_format={"type": "text"}).choices[0].message.content == ANSWER


@script.call
def error_of_schema() -> None:
    """A schema that cannot be compiled fails its own request."""
    format_ = {"type": "json_schema", "json_schema": {"name": "bad", "schema": {"type": "nonsense"}}}
    with raises(openai.UnprocessableEntityError) as raised:
        create(response_format=format_)
    assert "grammar" in raised.error.message


@script.call
async def async_stream_accumulated() -> None:
    """The async accumulator ends with the answer, parsed."""
    async with make_client() as one:
        given: Any = LONG | {"response_format": Person}
        async with one.chat.completions.stream(**given) as stream:
            whole = await stream.get_final_completion()
    assert isinstance(whole.choices[0].message.parsed, Person)


@script.call
async def async_tools() -> None:
    """Tools over the async client."""
    async with make_client() as one:
        given: Any = LONG | {"tools": [WEATHER]}
        answer = await one.chat.completions.create(**given, tool_choice="required", parallel_tool_calls=False)
    (called,) = answer.choices[0].message.tool_calls or []
    assert called.type == "function" and weather_of(called.function.arguments)


script.run()
