"""anthropic: messages, plain, streamed and parsed; tools and their round trip; token counts, errors, a stream that is left."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
from calls import ANSWER, QUESTION, Script, raises
from pydantic import BaseModel

script = Script()
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
GREEDY: Any = {"model": "tgi", "max_tokens": 120, "messages": MESSAGES, "extra_body": {"temperature": 0}}
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
]


class Person(BaseModel):
    """A person."""

    kind: Literal["human", "robot"]
    adult: bool


def client(**more: Any) -> anthropic.Anthropic:
    """Sends the key as x-api-key."""
    return anthropic.Anthropic(**{"base_url": script.url, "api_key": script.key, "max_retries": 0, **more})


@script.call
def text() -> None:
    """A message with its usage and the reason of its end."""
    made = client().messages.create(**GREEDY)
    assert made.content[0].text == ANSWER and made.stop_reason == "end_turn" and made.role == "assistant"
    assert made.usage.input_tokens > 3 and made.usage.output_tokens > 3


@script.call
def system() -> None:
    """A system prompt, as text and as blocks with a mark for caches."""
    blocks: Any = [{"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}}]
    for given in (blocks[0]["text"], blocks):
        assert "Paris" in client().messages.create(**GREEDY, system=given).content[0].text


@script.call
def bearer() -> None:
    """The key as a bearer token."""
    made = client(api_key=None, auth_token=script.key).messages.create(**GREEDY)
    assert made.content[0].text == ANSWER


@script.call
def stopped() -> None:
    """A stop sequence ends the message and is named."""
    made = client().messages.create(**GREEDY, stop_sequences=[" France"])
    assert (made.content[0].text, made.stop_reason, made.stop_sequence) == ("The capital of", "stop_sequence", " France")


@script.call
def cut_off() -> None:
    """A limit ends the message."""
    made = client().messages.create(**{**GREEDY, "max_tokens": 2})
    assert made.stop_reason == "max_tokens" and made.usage.output_tokens == 2


@script.call
def prefilled() -> None:
    """A last turn of the assistant is continued."""
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "The capital of France is"}]
    assert client().messages.create(**{**GREEDY, "messages": begun}).content[0].text.strip().startswith("Paris")


@script.call
def streamed() -> None:
    """The helper's text adds up, and its final message has usage and reason."""
    with client().messages.stream(**GREEDY) as stream:
        pieces = list(stream.text_stream)
        made = stream.get_final_message()
    assert len(pieces) > 1 and "".join(pieces) == ANSWER == made.content[0].text
    assert made.stop_reason == "end_turn" and made.usage.output_tokens == len(pieces) + 1


@script.call
def events() -> None:
    """The events of a stream, in order."""
    kinds = [event.type for event in client().messages.create(**GREEDY, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


@script.call
async def asynchronous() -> None:
    """The async client, plain and streamed."""
    async with anthropic.AsyncAnthropic(base_url=script.url, api_key=script.key, max_retries=0) as made:
        assert (await made.messages.create(**GREEDY)).content[0].text == ANSWER
        async with made.messages.stream(**GREEDY) as stream:
            assert "".join([piece async for piece in stream.text_stream]) == ANSWER


@script.call
def tool_round_trip() -> None:
    """A tool that must be used is; its result goes back, and the answer is text."""
    asked: Any = {"type": "any", "disable_parallel_tool_use": True}
    first = client().messages.create(**GREEDY, tools=TOOLS, tool_choice=asked)
    [use] = [block for block in first.content if block.type == "tool_use"]
    assert first.stop_reason == "tool_use" and use.name == "get_weather" and use.input["city"] in ("Paris", "Rome")
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "sunny"}]}
    turns: Any = [*MESSAGES, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client().messages.create(**{**GREEDY, "messages": turns}, tools=TOOLS, tool_choice={"type": "none"})
    assert second.stop_reason in ("end_turn", "max_tokens") and {block.type for block in second.content} == {"text"}


@script.call
def streamed_tool() -> None:
    """A streamed use of a named tool: its arguments add up to an object."""
    with client().messages.stream(**GREEDY, tools=TOOLS, tool_choice={"type": "tool", "name": "get_weather"}) as stream:
        kinds = [event.type for event in stream]
        made = stream.get_final_message()
    assert "input_json" in kinds and made.stop_reason == "tool_use" and made.content[-1].input["city"] in ("Paris", "Rome")


@script.call
def structured() -> None:
    """A message in a format: JSON of the schema."""
    shape: Any = {"format": {"type": "json_schema", "schema": Person.model_json_schema()}}
    Person.model_validate_json(client().messages.create(**GREEDY, output_config=shape).content[0].text)


@script.call
def parsed() -> None:
    """The helper that parses a model of pydantic."""
    assert isinstance(client().messages.parse(**GREEDY, output_format=Person).parsed_output, Person)


@script.call
def counted() -> None:
    """The tokens of a conversation are those that a message costs; tools cost more."""
    counted = client().messages.count_tokens(model="tgi", messages=MESSAGES).input_tokens
    usage = client().messages.create(**GREEDY).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert client().messages.count_tokens(model="tgi", messages=MESSAGES, tools=TOOLS).input_tokens > counted


@script.call
def models() -> None:
    """The list of models has ids."""
    assert [model.id for model in client().models.list()]


@script.call
def refused() -> None:
    """A value out of range, an image and a tool that the server would have to run are the client's errors."""
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    for more, told in (
        ({"extra_body": {"temperature": -1}}, "`temperature`"),
        ({"max_tokens": 8000, "messages": [{"role": "user", "content": "a " * 10**5}]}, "`max_tokens`"),
        ({"messages": [{"role": "user", "content": [image]}]}, "image modality is not supported"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "`web_search_20250305`"),
    ):
        with raises(anthropic.BadRequestError) as raised:
            client().messages.create(**{**GREEDY, **more})
        assert raised.error.body["error"]["type"] == "invalid_request_error" and told in raised.error.message, (
            raised.error.message
        )


@script.call
def wrong_key() -> None:
    """A wrong key is an authentication error with its type."""
    with raises(anthropic.AuthenticationError) as raised:
        client(api_key="wrong").messages.create(**GREEDY)
    assert raised.error.body["error"]["type"] == "authentication_error"


@script.call
def missing_path() -> None:
    """A path that is not served is not found."""
    with raises(anthropic.NotFoundError) as raised:
        client().messages.batches.list()
    assert raised.error.body["error"]["type"] == "not_found_error"


@script.call
def warned() -> None:
    """What has no effect is named in a header."""
    made = client().messages.with_raw_response.create(
        **GREEDY, metadata={"user_id": "u"}, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    assert made.headers["x-warning"] == "ignored fields: metadata, thinking.budget_tokens"


@script.call
def left() -> None:
    """A stream that is left ends, and the server answers the next request."""
    with client().messages.stream(**{**GREEDY, "max_tokens": 400}) as stream:
        next(iter(stream))
    assert client().messages.create(**GREEDY).content[0].text == ANSWER


script.run()
