"""openai: the Responses API, plain, streamed and parsed; functions and their round trip; errors, a stream that is left."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
from calls import ANSWER, QUESTION, Script, raises
from pydantic import BaseModel

script = Script()
GREEDY: Any = {"model": "tgi", "input": QUESTION, "max_output_tokens": 120, "temperature": 0}
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "name": "get_weather", "description": "The weather.", "parameters": SCHEMA, "strict": True}]


class Person(BaseModel):
    """A person."""

    kind: Literal["human", "robot"]
    adult: bool


def client(**more: Any) -> openai.OpenAI:
    """A client without retries."""
    return openai.OpenAI(**{"base_url": f"{script.url}/v1", "api_key": script.key, "max_retries": 0, **more})


@script.call
def text() -> None:
    """A response with its text, status and usage."""
    made = client().responses.create(**GREEDY)
    assert made.output_text == ANSWER and made.status == "completed" and made.model
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens and made.usage.output_tokens > 3


@script.call
def conversation() -> None:
    """Instructions, a developer's message, and a second turn that sends the first response's output back."""
    first = client().responses.create(**{**GREEDY, "input": "Hello!"}, instructions="You are a helpful assistant.")
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]},
        *first.output,
        {"role": "user", "content": QUESTION},
    ]
    assert "Paris" in client().responses.create(**{**GREEDY, "input": items}, store=False).output_text


@script.call
def cut_off() -> None:
    """A limit makes a response incomplete."""
    made = client().responses.create(**{**GREEDY, "max_output_tokens": 2})
    assert made.status == "incomplete" and made.incomplete_details.reason == "max_output_tokens"
    assert made.usage.output_tokens == 2


@script.call
def streamed() -> None:
    """The helper's text adds up, and its final response has usage."""
    with client().responses.stream(**GREEDY) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        made = stream.get_final_response()
    assert len(pieces) > 1 and "".join(pieces) == ANSWER == made.output_text and made.usage.output_tokens > 3


@script.call
def events() -> None:
    """The events of a stream, in order and numbered."""
    made = list(client().responses.create(**GREEDY, stream=True))
    kinds = [event.type.removeprefix("response.") for event in made]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"} and [event.sequence_number for event in made] == list(range(len(made)))
    assert made[-1].response.output_text == ANSWER


@script.call
async def asynchronous() -> None:
    """The async client, plain and streamed."""
    async with openai.AsyncOpenAI(base_url=f"{script.url}/v1", api_key=script.key, max_retries=0) as made:
        assert (await made.responses.create(**GREEDY)).output_text == ANSWER
        async with made.responses.stream(**GREEDY) as stream:
            assert (await stream.get_final_response()).output_text == ANSWER


@script.call
def tool_round_trip() -> None:
    """A function that must be called is; its output goes back, and the answer is text."""
    first = client().responses.create(**GREEDY, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert call.name == "get_weather" and json.loads(call.arguments)["city"] in ("Paris", "Rome")
    items: Any = [{"role": "user", "content": QUESTION}, *first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    second = client().responses.create(**{**GREEDY, "input": items}, tools=TOOLS, tool_choice="none")
    assert [item.type for item in second.output] == ["message"]


@script.call
def streamed_tool() -> None:
    """A streamed call of a named function: its arguments add up."""
    choice: Any = {"type": "function", "name": "get_weather"}
    with client().responses.stream(**GREEDY, tools=TOOLS, tool_choice=choice) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        made = stream.get_final_response()
    assert json.loads("".join(pieces)) == json.loads(made.output[-1].arguments) and made.output[-1].name == "get_weather"


@script.call
def structured() -> None:
    """A format of a JSON schema."""
    format: Any = {"type": "json_schema", "name": "person", "schema": Person.model_json_schema(), "strict": True}
    Person.model_validate_json(client().responses.create(**GREEDY, text={"format": format}).output_text)


@script.call
def parsed() -> None:
    """The helpers that parse a model of pydantic, plain and streamed."""
    assert isinstance(client().responses.parse(**GREEDY, text_format=Person).output_parsed, Person)
    with client().responses.stream(**GREEDY, text_format=Person) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Person)


@script.call
def refused() -> None:
    """What needs storage, images, built-in tools and a value out of range are the client's errors."""
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"}]}
    for more, told in (
        ({"temperature": -1}, "`temperature`"),
        ({"previous_response_id": "resp_1"}, "`previous_response_id`"),
        ({"background": True}, "`background`"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "`store: false`"),
        ({"input": [image]}, "image modality is not supported"),
        ({"tools": [{"type": "web_search"}]}, "`web_search`"),
    ):
        with raises(openai.BadRequestError) as raised:
            client().responses.create(**{**GREEDY, **more})
        assert raised.error.type == "invalid_request_error" and told in raised.error.message, raised.error.message


@script.call
def missing() -> None:
    """Nothing is stored, so nothing is found."""
    with raises(openai.NotFoundError):
        client().responses.retrieve("resp_1")


@script.call
def warned() -> None:
    """What has no effect is named in a header."""
    made = client().responses.with_raw_response.create(
        **GREEDY, store=True, reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"]
    )
    assert made.headers["x-warning"] == "ignored fields: store, reasoning.summary, include.reasoning.encrypted_content"


@script.call
def left() -> None:
    """A stream that is left ends, and the server answers the next request."""
    with client().responses.stream(**{**GREEDY, "max_output_tokens": 400}) as stream:
        next(iter(stream))
    assert client().responses.create(**GREEDY).output_text == ANSWER


script.run()
